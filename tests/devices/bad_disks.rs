//! Devices that fail or lie: loop devices on a file system with faults.

use testbed::disk::LoopDisk;
use testbed::faults::{Fallocate, FaultFs, Faults};
use testbed::images;

use super::{MIB, OLD, content, holds, old_disk, patchwork, send};
use crate::ferry::folder;
use crate::scene::{fault_fs, says};

/// A device full of old bytes that has these faults from then on. The device goes first.
struct Bad {
    disk: LoopDisk,
    _fs: FaultFs,
    _place: tempfile::TempDir,
}

impl Bad {
    fn new(size: u64, faults: Faults) -> Bad {
        let place = folder();
        let fs = fault_fs(place.path(), Faults::default());
        let disk = old_disk(fs.path(), size, 512);
        assert!(content(disk.device()).iter().all(|byte| *byte == OLD));
        fs.set(faults);
        Bad { disk, _fs: fs, _place: place }
    }
}

/// The device knows no command to zero: zeros are written.
#[test]
fn a1_a_device_without_a_command_to_zero() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    patchwork(&image, 12 * MIB + 345);
    for options in [&["--force"][..], &["--force", "--engine", "sync"], &["--force", "--no-direct"]] {
        let bad = Bad::new(16 * MIB, Faults { fallocate: Fallocate::Unsupported, ..Faults::default() });
        send(&image, bad.disk.device(), options).done();
        holds(&bad.disk, &image);
    }
}

#[test]
fn a_device_that_cannot_be_written_is_named_and_incomplete() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, 8 * MIB, 1).unwrap();
    let bad = Bad::new(8 * MIB, Faults { write_error: Some(5 * MIB..6 * MIB), ..Faults::default() });
    let device = bad.disk.device().to_str().unwrap();
    for options in [&["--force"][..], &["--force", "--no-direct"]] {
        let reason = send(&image, bad.disk.device(), options).failed(1);
        says(&reason, &[device, "Input/output error", "holds an incomplete copy now"]);
    }
}

#[test]
fn a7_a_device_that_stores_something_else_is_found_out() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, 8 * MIB + 100, 1).unwrap();
    for options in [&["--force"][..], &["--force", "--no-direct"]] {
        let bad = Bad::new(9 * MIB, Faults { corrupt_writes_at: Some(5 * MIB + 99), ..Faults::default() });
        let words = [options, &["--verify", "readback"]].concat();
        let reason = send(&image, bad.disk.device(), &words).failed(4);
        let device = bad.disk.device().to_str().unwrap();
        says(&reason, &["does not give back", "bytes 5242880 to 6291456", device, "incomplete copy"]);
        assert!(!reason.contains("not kept"), "{reason}");
    }
}

/// It says that it wrote zeros, and did not.
#[test]
fn a9_a_device_that_ignores_zeros_is_found_out() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    let bad = Bad::new(8 * MIB, Faults { fallocate: Fallocate::Ignored, ..Faults::default() });
    let reason = send(&image, bad.disk.device(), &["--force", "--verify", "readback"]).failed(4);
    says(&reason, &["does not give back", bad.disk.device().to_str().unwrap(), "incomplete copy"]);
}
