//! C6: writes that are lost after they were said to be done: a pool behind the target that is full,
//! and a flush that fails once. (Told, with eight streams: `reasons`. Full before: `errors`.)

use std::fs;
use std::path::Path;

use testbed::disk::{Fs, LoopDisk};
use testbed::faults::Faults;
use testbed::images;

use crate::ferry::{Sent, folder};
use crate::scene::{Attempt, Scene, fault_fs, says};

const MIB: u64 = 1 << 20;

/// A volume of 64 MiB in a pool of about 24: its size is a promise. The volume goes first.
struct Thin {
    volume: LoopDisk,
    _pool: LoopDisk,
    _place: tempfile::TempDir,
}

impl Thin {
    fn new(fs: Fs) -> Thin {
        let place = folder();
        let pool = LoopDisk::new(place.path(), 24 * MIB, Fs::Ext4NoJournal, 512).unwrap();
        let volume = LoopDisk::new(pool.folder().unwrap(), 64 * MIB, fs, 512).unwrap();
        Thin { volume, _pool: pool, _place: place }
    }
}

/// Through the page cache and around it, by one stream and by many.
fn every_way(attempt: impl Fn(&[&str])) {
    for direct in [&["--no-direct"][..], &[]] {
        for streams in ["1", "8"] {
            attempt(&[direct, &["--streams", streams]].concat());
        }
    }
}

/// Neither end calls it done, and the reason has the path and what the disk said.
#[track_caller]
fn is_lost(sent: &Sent, path: &Path) {
    assert!(!sent.stdout.contains("\"done\"") && !sent.stdout.contains("\"committed\""), "{}", sent.stdout);
    let reason = sent.failed(1);
    says(&reason, &["there: cannot ", path.to_str().unwrap()]);
    let said = ["No space left on device", "Input/output error"];
    assert!(said.iter().any(|cause| reason.contains(cause)), "{reason}");
}

#[test]
fn c6_a_thin_volume_that_runs_full() {
    let scene = Scene::new(40 * MIB);
    every_way(|words| {
        let thin = Thin::new(Fs::None);
        let device = thin.volume.device();
        let ferry = scene.local().arg("--force").args(words.iter().copied());
        let sent = Attempt::start(ferry.command(device)).wait();
        is_lost(&sent, device);
        says(&sent.failed(1), &["incomplete copy"]);
        scene.untouched();
        // The next one has this one's name, and would be refused as another disk.
        let mut forget = std::process::Command::new(crate::ferry::vmferry());
        forget.arg("drop").arg(device).env("STATE_DIRECTORY", crate::ferry::state());
        forget.output().unwrap();
    });
}

#[test]
fn c6_a_file_on_a_thin_volume_that_runs_full() {
    let scene = Scene::new(40 * MIB);
    every_way(|words| {
        let thin = Thin::new(Fs::Ext4NoJournal);
        let there = thin.volume.folder().unwrap();
        let sent = Attempt::start(scene.local().args(words.iter().copied()).command(there)).wait();
        is_lost(&sent, &there.join("disk.img.vmferry-part"));
        assert!(!there.join("disk.img").exists());
        scene.untouched();
    });
}

/// The kernel reports a lost write to one flush only: the next one would succeed.
#[test]
fn c6_a_flush_that_fails_once_is_never_tried_again() {
    every_way(|words| {
        let place = folder();
        let disk = fault_fs(place.path(), Faults { failing_fsyncs: 1, ..Faults::default() });
        let scene = Scene::new(8 * MIB).to(disk.path());
        let sent = scene.send(&scene.local().args(words.iter().copied()));
        is_lost(&sent, &scene.there.join("disk.img.vmferry-part"));
        scene.untouched();
        let counts = disk.counts();
        assert_eq!((counts.fsyncs, counts.folder_fsyncs), (1, 0), "{words:?}");
    });
}

#[test]
fn c6_a_flush_of_a_device_that_fails_once_is_never_tried_again() {
    let image = Scene::new(4 * MIB);
    every_way(|words| {
        let place = folder();
        let fs = fault_fs(place.path(), Faults::default());
        let disk = LoopDisk::new(fs.path(), 4 * MIB, Fs::None, 512).unwrap();
        fs.reset_counts();
        fs.set(Faults { failing_fsyncs: 1, ..Faults::default() });
        let ferry = image.local().arg("--force").args(words.iter().copied());
        let sent = Attempt::start(ferry.command(disk.device())).wait();
        is_lost(&sent, disk.device());
        assert_eq!(fs.faults().failing_fsyncs, 0);
    });
}

/// The last flush of all is the folder's, when the copy has its name already.
#[test]
fn c6_a_folder_that_cannot_be_flushed() {
    let place = folder();
    let disk = fault_fs(place.path(), Faults { failing_folder_fsyncs: 1, ..Faults::default() });
    let scene = Scene::new(MIB).to(disk.path());
    let reason = scene.send(&scene.local()).failed(1);
    says(&reason, &["there: cannot sync folder", scene.there.to_str().unwrap(), "Input/output error"]);
    scene.untouched();
    // What it replaced is gone, so that there is no way back.
    let copy = scene.there.join("disk.img");
    images::random(&copy, MIB, 7).unwrap();
    disk.set(Faults { failing_folder_fsyncs: 1, ..Faults::default() });
    let reason = scene.send(&scene.local().arg("--force")).failed(1);
    says(&reason, &["cannot sync folder", "disk.img is complete, but may not outlast a power cut"]);
    scene.arrived();
    fs::remove_file(copy).unwrap();
}

/// The test sees what it is about: a thin volume takes everything, and only its flush tells.
#[test]
fn c6_a_volume_like_this_takes_more_than_it_keeps() {
    let thin = Thin::new(Fs::None);
    let image = Scene::new(40 * MIB);
    let copy = |more: &str| {
        let words =
            [&format!("of={}", thin.volume.device().display()), "bs=1M", "status=none", "conv=notrunc"];
        let source = format!("if={}", image.image.display());
        let dd = std::process::Command::new("dd").args(words).args([&source[..], more]).output();
        dd.unwrap().status.success()
    };
    assert!(copy("count=40"), "the page cache takes it");
    assert!(!copy("conv=notrunc,fsync"), "the flush tells");
}
