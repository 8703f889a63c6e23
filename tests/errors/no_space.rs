//! The destination is full: before the copy, and in the middle of it.

use std::fs;
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::faults::Faults;

use crate::ferry::folder;
use crate::scene::{Scene, fault_fs, hurry, says, slow_link};

const MIB: u64 = 1 << 20;

#[test]
fn too_little_room_is_found_before_the_first_byte() {
    let place = folder();
    let disk = LoopDisk::new(place.path(), 32 * MIB, Fs::Ext4, 512).unwrap();
    let scene = Scene::new(40 * MIB).to(disk.folder().unwrap());
    let reason = scene.send(&scene.local()).failed(3);
    says(
        &reason,
        &["not enough room in", scene.there.to_str().unwrap(), "on the destination", "41943040 bytes"],
    );
    scene.untouched();
    assert_eq!(scene.send(&scene.local().arg("--dry-run")).failed(3), reason, "a dry run says the same");
    scene.untouched();
}

#[test]
fn space_that_another_takes_in_mid_copy_ends_the_job_with_its_reason() {
    let place = folder();
    let disk = LoopDisk::new(place.path(), 160 * MIB, Fs::Ext4, 512).unwrap();
    let link = slow_link();
    let scene = Scene::new(112 * MIB).to(disk.folder().unwrap());
    let mut attempt = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]));
    attempt.until_copying();
    let other = scene.there.join("other");
    // Fails when it has taken the last block, as it shall.
    Command::new("fallocate").args(["-l", "120M"]).arg(&other).status().unwrap();
    Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "status=none"])
        .arg(format!("of={}", other.display()))
        .output()
        .unwrap();
    hurry(&link);
    let reason = attempt.wait().failed(1);
    says(&reason, &["disk.img.vmferry-part", "No space left on device"]);
    fs::remove_file(other).unwrap();
    scene.untouched();
    // Nothing is in the way of the next attempt.
    scene.send(&scene.over(&link)).done();
    scene.arrived();
}

#[test]
fn a_write_without_space_ends_the_job_with_its_reason() {
    let place = folder();
    let full = fault_fs(place.path(), Faults { space: Some(5 * MIB + 4096), ..Faults::default() });
    let scene = Scene::new(16 * MIB).to(full.path());
    let reason = scene.send(&scene.local().args(["--streams", "8"])).failed(1);
    says(&reason, &["cannot write", "disk.img.vmferry-part", "at byte", "No space left on device"]);
    scene.untouched();
}
