//! What lies where a part file will be: only a left-over of vmferry's own that nobody else has is
//! ever removed, and nothing that exists is ever written.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use scene::{Scene, says, signal, slow_link};

const PART: &str = "disk.img.vmferry-part";

/// A part file of vmferry's own, as `kill -9` leaves it.
fn leftover(scene: &Scene) -> PathBuf {
    let part = scene.there.join(PART);
    fs::write(&part, vec![0xAA; 3 << 20]).unwrap();
    let marked = Command::new("setfattr").args(["-n", "user.vmferry.part", "-v", "1"]).arg(&part).status();
    assert!(marked.unwrap().success(), "setfattr: apt-get install attr");
    part
}

/// Refused with exit 3, dry or not, and what lies there is as it was.
#[track_caller]
fn refused(scene: &Scene, part: &Path, why: &str) {
    let content = fs::read(part).unwrap();
    let inode = fs::metadata(part).unwrap().ino();
    for more in [&["--force"][..], &["--dry-run"]] {
        let reason = scene.send(&scene.local().args(more)).failed(3);
        says(&reason, &[PART, why, "move it away"]);
    }
    assert_eq!(fs::read(part).unwrap(), content, "its content");
    assert_eq!(fs::metadata(part).unwrap().ino(), inode, "the file itself");
}

#[test]
fn a_leftover_gives_way_to_a_new_file() {
    let scene = Scene::new(1 << 20);
    let old = fs::metadata(leftover(&scene)).unwrap().ino();
    // Whoever has the old file open sees and changes nothing of the new one.
    let open = File::open(scene.there.join(PART)).unwrap();
    scene.send(&scene.local()).done();
    scene.arrived();
    assert_eq!(open.metadata().unwrap().ino(), old);
    assert_ne!(fs::metadata(scene.there.join("disk.img")).unwrap().ino(), old);
    let marks = Command::new("getfattr").arg(scene.there.join("disk.img")).output().unwrap();
    assert!(!String::from_utf8_lossy(&marks.stdout).contains("vmferry"), "a finished copy is not marked");
}

/// A receiver that was killed between making its file and marking it.
#[test]
fn a_file_without_any_data_is_cleared_away() {
    for size in [0, 1 << 20] {
        let scene = Scene::new(1 << 20);
        File::create(scene.there.join(PART)).unwrap().set_len(size).unwrap();
        scene.send(&scene.local()).done();
        scene.arrived();
    }
}

#[test]
fn somebody_elses_file_of_that_name_stays() {
    let scene = Scene::new(1 << 20);
    let part = scene.there.join(PART);
    fs::write(&part, "precious").unwrap();
    refused(&scene, &part, "not an unfinished copy");
}

#[test]
fn a_link_to_another_image_stays() {
    let scene = Scene::new(1 << 20);
    let part = leftover(&scene);
    fs::hard_link(&part, scene.here.path().join("backup.img")).unwrap();
    refused(&scene, &part, "not an unfinished copy");
}

#[test]
fn the_source_itself_stays() {
    let scene = Scene::new(1 << 20);
    let part = scene.there.join(PART);
    fs::hard_link(&scene.image, &part).unwrap();
    refused(&scene, &part, "the source itself");
}

/// Rescuing a left-over by sending it, to the name that it was meant for.
#[test]
fn a_leftover_that_is_sent_stays() {
    let scene = Scene::new(1 << 20);
    let part = leftover(&scene);
    let content = fs::read(&part).unwrap();
    let sent = scene::Attempt::start(scene.local_as(&part).command(scene.there.join("disk.img"))).wait();
    says(&sent.failed(3), &[PART, "the source itself"]);
    assert_eq!(fs::read(&part).unwrap(), content);
}

#[test]
fn a_leftover_that_somebody_writes_stays() {
    let scene = Scene::new(1 << 20);
    let part = leftover(&scene);
    let _open = File::options().append(true).open(&part).unwrap();
    refused(&scene, &part, "in use by");
}

#[test]
fn a_symbolic_link_stays() {
    let scene = Scene::new(1 << 20);
    let part = scene.there.join(PART);
    std::os::unix::fs::symlink(&scene.image, &part).unwrap();
    let reason = scene.send(&scene.local()).failed(3);
    says(&reason, &[PART, "not a regular file"]);
    assert!(fs::symlink_metadata(&part).unwrap().is_symlink());
}

/// A shutdown of the destination ends the receiver by SIGTERM: it left its part file, and the sender
/// knew no reason. SIGHUP is the remote shell's end, which a receiver outlives.
#[test]
fn a_receiver_that_is_told_to_end_says_so_and_cleans_up() {
    let (link, scene) = (slow_link(), Scene::new(48 << 20));
    let mut attempt = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]));
    attempt.until_copying();
    signal(scene.receiver(), "HUP");
    attempt.until_copying();
    signal(scene.receiver(), "TERM");
    let reason = attempt.wait().failed(6);
    says(&reason, &["there: the receiver was told to end", "run the same command again"]);
    scene.untouched();
}
