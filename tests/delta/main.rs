//! An older copy at the destination: only what differs travels and is written.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod copies;
mod endings;
mod refusals;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use scene::Scene;

const MIB: u64 = 1 << 20;

fn copy(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img")
}

fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap()
}

/// A scene whose destination has a copy, older than the image is now.
fn older(size: u64, change: impl FnOnce(&File)) -> Scene {
    on(Scene::new(size), change)
}

fn on(scene: Scene, change: impl FnOnce(&File)) -> Scene {
    scene.send(&scene.local()).done();
    changed(&scene.image, change);
    scene
}

fn changed(image: &Path, change: impl FnOnce(&File)) {
    change(&File::options().write(true).open(image).unwrap());
}

fn overwrite(file: &File, at: u64, len: u64, byte: u8) {
    file.write_all_at(&vec![byte; len as usize], at).unwrap();
}

/// A file system that has clones, and a scene on it.
fn on_btrfs(size: u64, disk: u64) -> (tempfile::TempDir, LoopDisk, Scene) {
    let place = ferry::folder();
    let disk = LoopDisk::new(place.path(), disk, Fs::Btrfs, 512).unwrap();
    let scene = Scene::new(size).to(disk.folder().unwrap());
    (place, disk, scene)
}

/// All ways to do it; the result is the same.
const WAYS: [&[&str]; 2] = [&["--delta"], &["--delta", "--inplace"]];

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
}

fn allocated(path: &Path) -> u64 {
    images::allocated(path).unwrap()
}
