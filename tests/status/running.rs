//! What a job has right now.

use testbed::images;

use super::{MIB, SLOW, drop, image, number, only, part, status, until_done};
use crate::scene::{Scene, says};

/// It is listed, as often as one likes, and cannot be dropped; the job does not notice.
#[test]
fn a_running_job() {
    let scene = Scene::new(160 * MIB);
    let slow = ["--log-interval", "0.1", "--sync-window", "4M", "--limit", "10MiB/s"];
    let mut attempt = scene.start(&scene.local().args(slow));
    until_done(&mut attempt, 10 * MIB);
    let mut durable = 0;
    for _ in 0..20 {
        let copy = only(&scene.there);
        assert_eq!((&copy["kind"], &copy["running"]), (&"new".into(), &true.into()), "{copy}");
        assert!(number(&copy, "durable_bytes") >= durable, "{copy}");
        durable = number(&copy, "durable_bytes");
    }
    let reason = drop(&part(&scene), &["--force"]).failed(3);
    says(&reason, &["disk.img.vmferry-part", "another vmferry job", "wait for it or end it"]);
    attempt.wait().done();
    scene.arrived();
}

/// Images that are in place already belong to the job until its end.
#[test]
fn an_image_that_is_complete_while_its_job_runs() {
    let scene = Scene::new(20 * MIB);
    let second = scene.here.path().join("second.img");
    images::random(&second, 200 * MIB, 2).unwrap();
    let mut attempt = scene.start(&scene.local().arg(&second).args(SLOW));
    attempt.until(|e| e["event"] == "committed" && e["image"] == "disk.img");
    let copies = status(&scene.there);
    let [first, rest] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!((&first["kind"], &first["running"]), (&"complete".into(), &true.into()));
    assert_eq!(rest["running"], true);
    says(&drop(&image(&scene), &["--force"]).failed(3), &["disk.img", "job that is running"]);
    attempt.wait().done();
    assert!(status(&scene.there).is_empty());
}
