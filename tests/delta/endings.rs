//! A delta that ends early: the older copy is whole, or has the name of an unfinished one, and the same
//! command finishes it.

use testbed::faults::Faults;
use testbed::images;

use super::{MIB, WAYS, copy, inode, number, older, overwrite};
use crate::scene::{Scene, fault_fs, notices, says, signal};

/// Half of it differs.
fn half() -> Scene {
    older(120 * MIB, |image| overwrite(image, 60 * MIB, 60 * MIB, 6))
}

/// Interrupted when something of it is written.
fn interrupted(scene: &Scene, way: &[&str], end: impl FnOnce(&Scene, &crate::scene::Attempt)) {
    let slow = ["--limit", "20MiB/s", "--log-interval", "0.1", "--sync-window", "4M"];
    let mut attempt = scene.start(&scene.local().args(way).args(slow));
    attempt.until(|e| e["event"] == "progress" && e["wire_bytes"].as_u64() > Some(10 * MIB));
    end(scene, &attempt);
    assert_ne!(attempt.wait().exit, 0);
}

#[test]
fn the_older_copy_stays_until_the_new_one_is_complete() {
    let scene = half();
    let (before, b3) = (inode(&copy(&scene)), images::b3(&copy(&scene)).unwrap());
    interrupted(&scene, WAYS[0], |scene, _| signal(scene.receiver(), "KILL"));
    assert_eq!((inode(&copy(&scene)), images::b3(&copy(&scene)).unwrap()), (before, b3.clone()));
    interrupted(&scene, WAYS[0], |_, attempt| attempt.signal("INT"));
    assert_eq!((inode(&copy(&scene)), images::b3(&copy(&scene)).unwrap()), (before, b3));
    scene.send(&scene.local().args(WAYS[0])).done();
    scene.arrived();
}

#[test]
fn in_place_it_has_another_name_until_it_is_complete() {
    let scene = half();
    let before = inode(&copy(&scene));
    interrupted(&scene, WAYS[1], |scene, _| signal(scene.receiver(), "KILL"));
    assert!(!copy(&scene).exists(), "nobody takes it for whole");
    // Neither is it sent over, not even by force.
    for force in [&[][..], &["--force"]] {
        let reason = scene.send(&scene.local().args(force)).failed(3);
        says(&reason, &["disk.img.vmferry-part", "update in place was interrupted", "--delta"]);
    }
    interrupted(&scene, WAYS[1], |_, attempt| attempt.signal("TERM"));
    assert!(!copy(&scene).exists());
    // One that is interrupted before it writes anything does not take it for whole, either.
    let slow = ["--log-interval", "0.1", "--limit", "80kB/s"];
    let mut attempt = scene.start(&scene.local().args(WAYS[1]).args(slow));
    attempt.until(|e| e["event"] == "started");
    attempt.signal("INT");
    attempt.wait().failed(6);
    assert!(!copy(&scene).exists());
    let sent = scene.send(&scene.local().args(WAYS[1]));
    let done = sent.done();
    says(&notices(&sent).join("\n"), &["interrupted delta", "gone on with"]);
    assert!(number(&done, "data_bytes") < 60 * MIB, "{done}");
    scene.arrived();
    assert_eq!(inode(&copy(&scene)), before);
}

/// As long as nothing was changed it gets its name back.
#[test]
fn in_place_and_nothing_was_written() {
    let scene = older(40 * MIB, |image| image.set_len(50 * MIB).unwrap());
    let b3 = images::b3(&copy(&scene)).unwrap();
    // The source's disk does not answer any more before anything that differs was read.
    let place = crate::ferry::folder();
    let disk =
        fault_fs(place.path(), Faults { stalled_reads: Some(20 * MIB..21 * MIB), ..Faults::default() });
    std::fs::copy(&scene.image, place.path().join("backing/disk.img")).unwrap();
    let ferry = scene.local_as(&disk.path().join("disk.img")).args(WAYS[1]).args(["--log-interval", "0.1"]);
    let mut attempt = scene.start(&ferry);
    attempt.until(|e| e["event"] == "progress" && e["done_bytes"].as_u64() > Some(0));
    assert!(!copy(&scene).exists());
    disk.set(Faults { read_error: Some(20 * MIB..21 * MIB), ..Faults::default() });
    let reason = attempt.wait().failed(1);
    assert!(!reason.contains("changed in part"), "{reason}");
    scene.no_receiver(crate::scene::HANG);
    assert_eq!(images::b3(&copy(&scene)).unwrap(), b3);
    let left: Vec<_> = std::fs::read_dir(&scene.there).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// What an earlier attempt changed does not get its name back, though this one changed nothing.
#[test]
fn in_place_and_another_image_is_refused() {
    let scene = half();
    interrupted(&scene, WAYS[1], |scene, _| signal(scene.receiver(), "KILL"));
    let second = scene.here.path().join("second.img");
    images::random(&second, 10 * MIB, 2).unwrap();
    images::random(&scene.there.join("second.img"), 20 * MIB, 2).unwrap();
    let reason = scene.send(&scene.local().arg(&second).args(WAYS[1])).failed(3);
    says(&reason, &["second.img", "shrank"]);
    scene.no_receiver(crate::scene::HANG);
    assert!(!copy(&scene).exists(), "nobody takes it for whole");
    std::fs::remove_file(scene.there.join("second.img")).unwrap();
    scene.send(&scene.local().args(WAYS[1])).done();
    scene.arrived();
}
