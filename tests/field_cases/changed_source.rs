//! A8: a source that changes while it is copied ends in a clear error, never in "done".

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::scene::{HANG, Scene, hurry, says, slow_link};

const SIZE: u64 = 32 << 20;

/// Runs `change` in the middle of a copy and returns the reason that it fails with.
fn changed_by(change: impl FnOnce(&Path)) -> String {
    let (link, scene) = (slow_link(), Scene::new(SIZE));
    let mut attempt = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]));
    attempt.until_copying();
    change(&scene.image);
    hurry(&link);
    let sent = attempt.wait();
    assert!(!sent.stdout.contains("\"done\"") && !sent.stdout.contains("\"committed\""), "{}", sent.stdout);
    let reason = sent.failed(1);
    says(&reason, &[scene.image.to_str().unwrap()]);
    scene.nothing_there(HANG);
    reason
}

#[test]
fn a8_changed_by_a_buffered_write() {
    let reason = changed_by(|image| {
        File::options().write(true).open(image).unwrap().write_all_at(&[7; 512], 4096).unwrap();
    });
    says(&reason, &["changed while it was copied", "stop what writes it and send it again"]);
}

#[test]
fn a8_changed_by_a_direct_write() {
    let reason = changed_by(|image| {
        let words = ["if=/dev/zero", "bs=1M", "count=1", "conv=notrunc", "oflag=direct", "status=none"];
        let dd = Command::new("dd").args(words).arg(format!("of={}", image.display())).status();
        assert!(dd.unwrap().success());
    });
    says(&reason, &["changed while it was copied"]);
}

#[test]
fn a8_changed_and_its_time_put_back() {
    let reason = changed_by(|image| {
        let before = image.metadata().unwrap().modified().unwrap();
        let file = File::options().write(true).open(image).unwrap();
        file.write_all_at(&[7; 512], 4096).unwrap();
        file.set_modified(before).unwrap();
    });
    says(&reason, &["changed while it was copied"]);
}

#[test]
fn a8_grown() {
    let reason =
        changed_by(|image| File::options().write(true).open(image).unwrap().set_len(SIZE + 1).unwrap());
    says(&reason, &["its size went from 33554432 to 33554433 bytes"]);
}

#[test]
fn a8_cut_short() {
    let reason = changed_by(|image| File::options().write(true).open(image).unwrap().set_len(4096).unwrap());
    says(&reason, &["its size went from 33554432 to 4096 bytes"]);
}
