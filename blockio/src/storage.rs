//! What an image is on this host, and what it lies on: so that nobody copies a disk over itself
//! under another name.
//!
//! A partition lies on its disk, a device mapper or RAID device on its members (`slaves` in sysfs),
//! and a loop device *is* its backing file, whatever part of it it shows.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::image::Image;
use crate::in_use::Device;

/// Devices on top of each other that are followed; more are a loop in sysfs.
const DEPTH: usize = 16;

/// Names that mean the same thing as long as this system runs, and nothing on another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// The image itself: two that share one of these are one.
    pub is: Vec<String>,
    /// What it lies on, and what that lies on.
    pub on: Vec<String>,
}

impl Image {
    /// What the image is, and what it lies on; empty where the system does not say.
    #[must_use]
    pub fn storage(&self) -> Storage {
        // The kernel's random name of this boot: containers on one host share it, hosts do not.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (Ok(stat), false) = (self.stat(), boot.trim().is_empty()) else { return Storage::default() };
        let mut storage = Storage::default();
        match self.sectors() {
            None => storage.is.push(file(stat.st_dev, stat.st_ino)),
            Some(_) => {
                storage.is.push(device(stat.st_rdev));
                if let Some(found) = Device::of(stat.st_rdev) {
                    storage.is.extend(backing_file(&found));
                    below(&found, &mut storage.on, DEPTH);
                }
            }
        }
        let name = |text: &mut String| *text = format!("{} {text}", boot.trim());
        storage.is.iter_mut().chain(&mut storage.on).for_each(name);
        storage
    }
}

fn file(dev: u64, ino: u64) -> String {
    format!("file {dev}:{ino}")
}

fn device(number: u64) -> String {
    format!("device {number}")
}

/// Of a loop device.
fn backing_file(found: &Device) -> Option<String> {
    let path = fs::read_to_string(found.folder.join("loop/backing_file")).ok()?;
    let stat = fs::metadata(Path::new(path.trim_end_matches('\n'))).ok()?;
    Some(file(stat.dev(), stat.ino()))
}

fn below(found: &Device, on: &mut Vec<String>, depth: usize) {
    let mut under: Vec<Device> = found.whole().into_iter().collect();
    let members = fs::read_dir(found.folder.join("slaves")).into_iter().flatten().flatten();
    under.extend(members.filter_map(|member| Device::at(member.path().canonicalize().ok()?)));
    for next in under {
        on.push(device(next.number));
        on.extend(backing_file(&next));
        if depth > 0 {
            below(&next, on, depth - 1);
        }
    }
}
