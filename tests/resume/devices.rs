//! A block device has no ledger beside it: that lies in the state folder, and what is on the device is
//! compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use super::{MIB, number, until_done};
use crate::ferry::{Sent, folder};
use crate::scene::{Attempt, Scene, notices, says, signal};

const SIZE: u64 = 96 * MIB;

struct Bed {
    place: tempfile::TempDir,
    disk: LoopDisk,
    scene: Scene,
}

impl Bed {
    fn new() -> Bed {
        let place = folder();
        let disk = LoopDisk::new(place.path(), SIZE, Fs::None, 512).unwrap();
        images::dirty(disk.backing(), SIZE, 0xAA).unwrap();
        Bed { place, disk, scene: Scene::new(SIZE) }
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = self.scene.local().args(["--force"]).args(more).command(self.disk.device());
        command.env("STATE_DIRECTORY", self.place.path().join("state"));
        command
    }

    fn send(&self, more: &[&str]) -> Sent {
        Attempt::start(self.command(more)).wait()
    }

    fn killed_at(&self, bytes: u64) {
        let slow = ["--log-interval", "0.1", "--sync-window", "8M", "--limit", "100MiB/s"];
        let mut attempt = Attempt::start(self.command(&slow));
        until_done(&mut attempt, bytes);
        signal(self.scene.receiver(), "KILL");
        attempt.wait().failed(1);
    }

    fn states(&self) -> usize {
        fs::read_dir(self.place.path().join("state")).unwrap().count()
    }

    #[track_caller]
    fn arrived(&self) {
        assert!(same(&self.scene.image, self.disk.backing()));
        assert_eq!(self.states(), 0);
    }
}

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).unwrap() == fs::read(b).unwrap()
}

#[test]
fn the_same_command_goes_on() {
    let bed = Bed::new();
    bed.killed_at(50 * MIB);
    assert_eq!(bed.states(), 1);
    let sent = bed.send(&[]);
    let done = sent.done();
    says(&notices(&sent).join("\n"), &["unfinished copy", "is gone on with"]);
    assert!(number(&done, "resumed_bytes") >= 24 * MIB, "{done}");
    bed.arrived();
}

/// F5: by the name of the device another disk is found.
#[test]
fn another_disk_by_that_name_is_refused() {
    let bed = Bed::new();
    bed.killed_at(50 * MIB);
    let other = fs::File::options().write(true).open(bed.disk.device()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&other, &vec![0x55; SIZE as usize], 0).unwrap();
    other.sync_all().unwrap();
    drop(other);
    let reason = bed.send(&[]).failed(3);
    says(&reason, &["is not the disk that an unfinished copy of disk.img is on", "vmferry drop"]);
    assert!(fs::read(bed.disk.backing()).unwrap().iter().all(|b| *b == 0x55), "not touched");
    // Unless that one is given up.
    let mut drop = Command::new(crate::ferry::vmferry());
    drop.arg("drop").arg(bed.disk.device()).env("STATE_DIRECTORY", bed.place.path().join("state"));
    assert!(drop.status().unwrap().success());
    bed.send(&[]).done();
    bed.arrived();
}

#[test]
fn a_source_that_changed_is_compared_as_a_whole() {
    let bed = Bed::new();
    bed.killed_at(50 * MIB);
    let source = fs::File::options().write(true).open(&bed.scene.image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&source, &vec![0x5A; MIB as usize], 3 * MIB).unwrap();
    drop(source);
    bed.send(&[]).done();
    bed.arrived();
}

#[test]
fn another_image_starts_over() {
    let bed = Bed::new();
    bed.killed_at(50 * MIB);
    let other = bed.scene.here.path().join("other.img");
    images::random(&other, SIZE, 77).unwrap();
    let ferry = bed.scene.local_as(&other).args(["--force"]);
    let mut command = ferry.command(bed.disk.device());
    command.env("STATE_DIRECTORY", bed.place.path().join("state"));
    let done = Attempt::start(command).wait().done();
    assert_eq!(number(&done, "resumed_bytes"), 0);
    assert!(same(&other, bed.disk.backing()));
    assert_eq!(bed.states(), 0);
}
