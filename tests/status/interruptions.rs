//! After an attempt that did not end well.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use testbed::images;

use super::{
    MIB, SLOW, drop, dropped, image, killed_at, ledger, names, number, only, part, status, until_done,
};
use crate::scene::{HANG, Scene, says, signal};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// What is called durable is what the next attempt goes on with.
#[test]
fn a_killed_receiver() {
    let before = now();
    let scene = Scene::new(96 * MIB + 5000);
    killed_at(&scene, 40 * MIB);
    let kept = fs::read(ledger(&scene)).unwrap();
    let copy = only(&scene.there);
    assert_eq!(copy["path"], image(&scene).canonicalize().unwrap_or(image(&scene)).to_str().unwrap());
    assert_eq!((&copy["kind"], &copy["running"]), (&"new".into(), &false.into()));
    assert_eq!((&copy["source"], &copy["reason"]), (&"disk.img".into(), &serde_json::Value::Null));
    assert_eq!(number(&copy, "image_bytes"), 96 * MIB + 5000);
    let durable = number(&copy, "durable_bytes");
    assert!((8 * MIB..96 * MIB).contains(&durable), "{copy}");
    assert!(number(&copy, "disk_bytes") >= durable, "{copy}");
    for time in ["begun", "changed"] {
        assert!((before..=now()).contains(&number(&copy, time)), "{copy}");
    }
    says(copy["next"].as_str().unwrap(), &["vmferry send", "vmferry drop", "disk.img"]);
    assert_eq!(fs::read(ledger(&scene)).unwrap(), kept, "looking changes nothing");
    let done = scene.send(&scene.local()).done();
    assert_eq!(number(&done, "resumed_bytes"), durable, "{done}");
    scene.arrived();
    assert!(status(&scene.there).is_empty());
}

#[test]
fn an_end_in_good_order() {
    for there in [false, true] {
        let scene = Scene::new(96 * MIB);
        let mut attempt = scene.start(&scene.local().args(SLOW));
        until_done(&mut attempt, 30 * MIB);
        if there {
            signal(scene.receiver(), "TERM");
            says(&attempt.wait().failed(6), &["kept and not sent again", "vmferry drop"]);
        } else {
            attempt.signal("INT");
            says(&attempt.wait().failed(6), &["run the same command again"]);
        }
        scene.untouched();
        let copy = only(&scene.there);
        assert!(number(&copy, "durable_bytes") >= 30 * MIB, "{copy}");
        assert_eq!(copy["running"], false);
    }
}

/// By any of its names; then all is sent.
#[test]
fn dropped_by_any_name_and_sent_anew() {
    for name in [image, part, ledger] {
        let scene = Scene::new(64 * MIB);
        killed_at(&scene, 32 * MIB);
        let disk = number(&only(&scene.there), "disk_bytes");
        assert_eq!(dropped(&name(&scene), "new", &[]), disk);
        assert_eq!(names(&scene.there), [""; 0]);
        says(&drop(&name(&scene), &[]).failed(3), &["no unfinished copy", "vmferry status"]);
        let done = scene.send(&scene.local()).done();
        assert_eq!(number(&done, "resumed_bytes"), 0);
        scene.arrived();
    }
}

/// Killed before there was anything durable, and while the ledger was made.
#[test]
fn without_a_whole_ledger() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    let unnamed = scene.there.join("disk.img.vmferry-ledge~");
    fs::rename(ledger(&scene), &unnamed).unwrap();
    let copy = only(&scene.there);
    assert_eq!((&copy["kind"], number(&copy, "durable_bytes")), (&"new".into(), 0));
    assert_eq!(number(&copy, "image_bytes"), 64 * MIB);
    dropped(&part(&scene), "new", &[]);
    assert_eq!(names(&scene.there), [""; 0]);

    fs::write(&unnamed, "").unwrap();
    let copy = only(&scene.there);
    assert_eq!(copy["kind"], "orphan");
    says(copy["reason"].as_str().unwrap(), &["never whole"]);
    dropped(&unnamed, "orphan", &[]);
    assert_eq!(names(&scene.there), [""; 0]);
}

#[test]
fn a_ledger_alone() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    fs::remove_file(part(&scene)).unwrap();
    let copy = only(&scene.there);
    assert_eq!((&copy["kind"], &copy["source"]), (&"orphan".into(), &"disk.img".into()));
    says(copy["reason"].as_str().unwrap(), &["copy is gone"]);
    dropped(&image(&scene), "orphan", &[]);
    assert_eq!(names(&scene.there), [""; 0]);
}

/// Of several images some are in place: those stay, whatever is dropped.
#[test]
fn of_several_images() {
    let scene = Scene::new(40 * MIB);
    let second = scene.here.path().join("second.img");
    images::random(&second, 96 * MIB, 2).unwrap();
    let ferry = || scene.local().arg(&second);
    let mut attempt = scene.start(&ferry().args(SLOW));
    attempt.until(|e| e["event"] == "committed" && e["image"] == "disk.img");
    until_done(&mut attempt, 80 * MIB);
    attempt.signal("INT");
    attempt.wait().failed(6);
    scene.no_receiver(HANG);

    let [first, rest] = &status(&scene.there)[..] else { panic!() };
    assert_eq!((&first["kind"], number(first, "durable_bytes")), (&"complete".into(), 40 * MIB));
    assert!(number(first, "disk_bytes") < MIB, "the ledger alone: {first}");
    assert_eq!((&rest["kind"], &rest["source"]), (&"new".into(), &"second.img".into()));

    dropped(&image(&scene), "complete", &[]);
    images::equal(&scene.image, &image(&scene)).unwrap();
    assert_eq!(only(&scene.there)["source"], "second.img");
    says(&drop(&image(&scene), &[]).failed(3), &["no unfinished copy"]);
    dropped(&scene.there.join("second.img"), "new", &[]);
    assert_eq!(names(&scene.there), ["disk.img"]);
}

/// A complete image that was changed since is not what its ledger says; the image stays.
#[test]
fn a_complete_image_that_changed_since() {
    let scene = Scene::new(8 * MIB);
    let second = scene.here.path().join("second.img");
    images::random(&second, 96 * MIB, 2).unwrap();
    let mut attempt = scene.start(&scene.local().arg(&second).args(SLOW));
    attempt.until(|e| e["event"] == "committed" && e["image"] == "disk.img");
    until_done(&mut attempt, 40 * MIB);
    signal(scene.receiver(), "KILL");
    attempt.wait().failed(1);
    fs::write(image(&scene), "another").unwrap();
    assert_eq!(status(&scene.there)[0]["kind"], "orphan");
    dropped(&ledger(&scene), "orphan", &["--force"]);
    assert_eq!(fs::read_to_string(image(&scene)).unwrap(), "another");
}

/// Several at once, one of which cannot be dropped: the others are.
#[test]
fn several_at_once() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    let [a, b, c] = [part(&scene), ledger(&scene), scene.there.join("nothing.img")];
    let sent = super::run(["drop", "--json"].iter().map(AsRef::as_ref).chain([
        c.as_os_str(),
        a.as_ref(),
        b.as_ref(),
    ]));
    says(&sent.failed(3), &["nothing.img"]);
    let kinds: Vec<_> = sent.events().iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["refused", "dropped", "failed"]);
    assert_eq!(names(&scene.there), [""; 0]);
}
