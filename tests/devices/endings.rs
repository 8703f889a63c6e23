//! Copies that end early: a device has no old state to go back to, and the user is told so.

use std::fs::File;
use std::os::unix::fs::FileExt;

use testbed::images;

use super::{MIB, content, holds, is_old, old_disk, send};
use crate::ferry::folder;
use crate::scene::{Scene, hurry, says, slow_link};

#[test]
fn an_interrupted_copy_is_called_incomplete_and_the_next_one_works() {
    let (link, folder) = (slow_link(), folder());
    let scene = Scene::new(24 * MIB);
    let disk = old_disk(folder.path(), 24 * MIB, 512);
    let ferry = scene.over(&link).args(["--force", "--log-interval", "0.1"]);
    let mut attempt = crate::scene::Attempt::start(ferry.command(disk.device()));
    attempt.until_copying();
    // A second job keeps away meanwhile.
    let reason = send(&scene.image, disk.device(), &["--force"]).failed(3);
    says(&reason, &["is in use by", "(pid "]);
    attempt.signal("INT");
    let reason = attempt.wait().failed(6);
    says(&reason, &["interrupted", disk.device().to_str().unwrap(), "holds an incomplete copy now"]);
    assert!(!reason.contains("as it was"), "{reason}");
    scene.untouched();
    assert!(content(disk.device()) != content(&scene.image));
    send(&scene.image, disk.device(), &["--force"]).done();
    holds(&disk, &scene.image);
}

#[test]
fn a_receiver_that_is_told_to_end_leaves_an_incomplete_copy() {
    let (link, folder) = (slow_link(), folder());
    let scene = Scene::new(24 * MIB);
    let disk = old_disk(folder.path(), 24 * MIB, 512);
    let ferry = scene.over(&link).args(["--force", "--log-interval", "0.1"]);
    let mut attempt = crate::scene::Attempt::start(ferry.command(disk.device()));
    attempt.until_copying();
    crate::scene::signal(scene.receiver(), "TERM");
    let reason = attempt.wait().failed(6);
    says(&reason, &[disk.device().to_str().unwrap(), "holds an incomplete copy now"]);
    scene.untouched();
}

#[test]
fn a_source_device_that_changed_is_an_error() {
    let (link, folder) = (slow_link(), folder());
    let scene = Scene::new(4096);
    let (source, target) = (old_disk(folder.path(), 24 * MIB, 512), old_disk(folder.path(), 24 * MIB, 512));
    images::random(&folder.path().join("data"), 24 * MIB, 3).unwrap();
    std::fs::copy(folder.path().join("data"), source.device()).unwrap();
    let ferry = crate::ferry::Ferry::over(&link).remote_path(scene.peer()).arg(source.device());
    let ferry = ferry.args(["--force", "--log-interval", "0.1"]);
    let mut attempt = crate::scene::Attempt::start(ferry.command(target.device()));
    attempt.until_copying();
    let writer = File::options().write(true).open(source.device()).unwrap();
    writer.write_all_at(&[7; 4096], 20 * MIB).unwrap();
    drop(writer);
    hurry(&link);
    let reason = attempt.wait().failed(1);
    let [source, target] = [source.device(), target.device()].map(|d| d.to_str().unwrap());
    says(&reason, &[source, "changed while it was copied", target, "holds an incomplete copy now"]);
    scene.nothing_there(crate::scene::HANG);
}

/// Before the first byte nothing is incomplete.
#[test]
fn a_job_that_never_starts_leaves_the_device_as_it_was() {
    let folder = folder();
    let scene = Scene::new(MIB);
    let disk = old_disk(folder.path(), MIB, 512);
    // Nobody answers at that address (RFC 5737).
    let ferry = scene.local().args(["--force", "--via", "192.0.2.1", "--peer-timeout", "3"]);
    let reason = crate::scene::Attempt::start(ferry.command(disk.device())).wait().failed(3);
    assert!(!reason.contains("incomplete"), "{reason}");
    is_old(&disk);
    scene.dismiss();
}
