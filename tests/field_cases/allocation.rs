//! C4: file systems without some or all uses of fallocate(2).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use testbed::faults::{Fallocate, Faults};
use testbed::images;

use crate::ferry::folder;
use crate::scene::{Scene, fault_fs, says};

const MIB: u64 = 1 << 20;

/// Half of it zeros: holes, zeros that were written, and short runs of both among data.
fn half_zeros(path: &Path) {
    images::random(path, 24 * MIB + 513, 4).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; 6 << 20], 2 * MIB).unwrap();
    for place in 9..15 {
        file.write_all_at(&vec![0; 64 << 10], place * MIB + 4096).unwrap();
    }
    let punch = Command::new("fallocate").args(["-p", "-o", "16M", "-l", "5M"]).arg(path).status();
    assert!(punch.unwrap().success());
}

fn arrives_on(fallocate: Fallocate) {
    let place = folder();
    let target = fault_fs(place.path(), Faults { fallocate, ..Faults::default() });
    let scene = Scene::with(half_zeros).to(target.path());
    scene.send(&scene.local()).done();
    scene.arrived();
    assert!(target.counts().fallocates > 0, "it was tried");
}

#[test]
fn c4_without_zero_range() {
    arrives_on(Fallocate::NoZeroRange);
}

#[test]
fn c4_without_any_fallocate() {
    arrives_on(Fallocate::Unsupported);
}

#[test]
fn c4_no_space_to_allocate_is_an_error_and_no_reason_to_go_on_without() {
    let place = folder();
    let target = fault_fs(place.path(), Faults { fallocate: Fallocate::NoSpace, ..Faults::default() });
    let scene = Scene::new(16 * MIB).to(target.path());
    let reason = scene.send(&scene.local()).failed(1);
    says(&reason, &["cannot allocate space for", "disk.img.vmferry-part", "No space left on device"]);
    scene.untouched();
}

/// A mounted tmpfs; goes with the handle.
struct Tmpfs(tempfile::TempDir);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn c4_on_tmpfs() {
    let memory = Tmpfs(folder());
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(memory.0.path()).status();
    assert!(mount.unwrap().success());
    let there = memory.0.path().join("images");
    fs::create_dir(&there).unwrap();
    let scene = Scene::with(half_zeros).to(&there);
    scene.send(&scene.local()).done();
    scene.arrived();
}
