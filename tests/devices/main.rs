//! Block devices as source and as destination: loop devices of every sector size, full of old bytes.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod bad_disks;
mod copies;
mod endings;
mod refusals;
mod taken;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferry::{Ferry, Sent};
use scene::Attempt;
use testbed::disk::{Fs, LoopDisk};
use testbed::images;

const MIB: u64 = 1 << 20;
/// What was on a device before.
const OLD: u8 = 0xaa;

/// A device full of old bytes.
fn old_disk(folder: &Path, size: u64, sector: u32) -> LoopDisk {
    let disk = LoopDisk::new(folder, size, Fs::None, sector).unwrap();
    images::dirty(disk.device(), size, OLD).unwrap();
    disk
}

/// Data, holes long and short, and written zeros, up to an end that is data.
fn patchwork(path: &Path, size: u64) {
    images::random(path, size, 1).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    for hole in [MIB..2 * MIB, 2 * MIB + 4096..2 * MIB + 8192, 2 * MIB + 12288..2 * MIB + 90_000] {
        punch(path, hole.start, hole.end - hole.start);
    }
    punch(path, 3 * MIB, 4 * MIB);
    file.write_all_at(&vec![0; 1_300_000], 8 * MIB + 5000).unwrap();
}

fn punch(path: &Path, at: u64, len: u64) {
    let (at, len) = (at.to_string(), len.to_string());
    let done = std::process::Command::new("fallocate").args(["-p", "-o", &at, "-l", &len]).arg(path).status();
    assert!(done.expect("fallocate is missing: run `make deps`").success());
}

/// Sends one image to a path, with options.
fn send(image: &Path, to: &Path, options: &[&str]) -> Sent {
    Attempt::start(Ferry::local().args(options).arg(image).command(to)).wait()
}

/// What a device has, as whoever reads it through the page cache sees it.
fn content(device: &Path) -> Vec<u8> {
    fs::read(device).unwrap()
}

/// The image lies at the start of the device, and the rest of it is old; on the disk as well as in
/// the page cache.
#[track_caller]
fn holds(disk: &LoopDisk, image: &Path) {
    let image = fs::read(image).unwrap();
    for place in [disk.device(), disk.backing()] {
        let found = content(place);
        let (copy, rest) = found.split_at(image.len());
        let differs = copy.iter().zip(&image).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first byte of {} that differs", place.display());
        let touched = rest.iter().position(|byte| *byte != OLD);
        assert_eq!(touched, None, "first byte of {} past the image that was touched", place.display());
    }
}

/// Nothing was written to the device.
#[track_caller]
fn is_old(disk: &LoopDisk) {
    assert!(content(disk.device()).iter().all(|byte| *byte == OLD), "the device was touched");
}
