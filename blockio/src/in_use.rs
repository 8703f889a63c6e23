//! What the kernel does with a block device: mounts, swap, device mapper and RAID, loop devices.
//!
//! Goal: who must not be overwritten, or may be writing, is named, for the device itself, for its
//! partitions, and for the whole that it is a partition of. Sources: `/proc/self/mountinfo`
//! (`proc(5)`), `/proc/swaps`, and `/sys/dev/block/MAJOR:MINOR` (kernel, `sysfs-block`).
//!
//! Non-goal: proof. Mounts of other namespaces, and all but the first device of a file system that
//! lies on several, are not listed anywhere; O_EXCL ([`crate::Image::claim_device`]) finds them.

use crate::holders::{Disk, loop_devices, processes};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Which users count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Those who may be writing: a copy would be torn.
    Writing,
    /// All to whom an overwritten device does harm.
    Any,
}

/// The users of a device, a phrase each. Whoever is gone after half a second does not count: udev,
/// `losetup -f` and the like open devices in passing.
pub(crate) fn of_device(number: u64, wanted: Use) -> Vec<String> {
    let devices = overlapping(number);
    let mut users = mounts(&devices, wanted);
    users.extend(swaps(&devices));
    users.extend(devices.iter().flat_map(holders));
    let disk = Disk::Devices(devices.iter().map(|d| d.number).collect());
    users.extend(loop_devices(&disk, wanted));
    let writers = until(Vec::is_empty, || processes(&disk, Use::Writing));
    users.extend(writers);
    users
}

/// Looks until the result is good, or for half a second.
pub(crate) fn until<T>(good: impl Fn(&T) -> bool, look: impl Fn() -> T) -> T {
    for _ in 0..10 {
        let seen = look();
        if good(&seen) {
            return seen;
        }
        sleep(Duration::from_millis(50));
    }
    look()
}

/// Who may have claimed a device that no user of is seen: those who have it open, even for reading
/// only; else there is one that is hidden.
pub(crate) fn claimed(number: u64) -> Vec<String> {
    let numbers = overlapping(number).iter().map(|d| d.number).collect();
    let mut users = processes(&Disk::Devices(numbers), Use::Any);
    if users.is_empty() {
        users.push(
            "the kernel (a mount that is not visible from here, or one of several devices of a file system)"
                .into(),
        );
    }
    users
}

/// A block device, and what sysfs says of it.
pub(crate) struct Device {
    pub(crate) number: u64,
    pub(crate) folder: PathBuf,
    /// Its name, when it is another one than was asked for.
    other: Option<String>,
}

impl Device {
    /// Finds its folder in `/sys`.
    pub(crate) fn of(number: u64) -> Option<Device> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(Device { number, folder, other: None })
    }

    /// The one that has this folder, when it is a block device's.
    pub(crate) fn at(folder: PathBuf) -> Option<Device> {
        let text = fs::read_to_string(folder.join("dev")).ok()?;
        let number = device_number(text.trim())?;
        let other = folder.file_name()?.to_str()?.to_owned();
        Some(Device { number, folder, other: Some(other) })
    }

    fn is_partition(&self) -> bool {
        self.folder.join("partition").exists()
    }

    /// The one that it is a partition of.
    pub(crate) fn whole(&self) -> Option<Device> {
        self.is_partition().then(|| Device::at(self.folder.parent()?.to_owned())).flatten()
    }

    /// A phrase about it, with the device's name when it is another one.
    fn user(&self, phrase: &str) -> String {
        match &self.other {
            Some(name) => format!("{phrase} ({name})"),
            None => phrase.to_owned(),
        }
    }
}

/// The device, its partitions, and the whole that it is a partition of.
fn overlapping(number: u64) -> Vec<Device> {
    let Some(device) = Device::of(number) else {
        return Vec::new();
    };
    let mut related = Vec::new();
    if device.is_partition() {
        related.extend(device.whole());
    } else if let Ok(inside) = fs::read_dir(&device.folder) {
        let folders = inside.flatten().map(|entry| entry.path());
        related.extend(folders.filter(|f| f.join("partition").exists()).filter_map(Device::at));
        related.sort_by_key(|device| device.number);
    }
    std::iter::once(device).chain(related).collect()
}

/// `MAJOR:MINOR`.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn mounts(devices: &[Device], wanted: Use) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut users = Vec::new();
    for mount in table.lines().filter_map(Mount::parse) {
        // btrfs shows a number of its own, but the node that it was mounted from.
        let node = || mount.source.starts_with("/dev/").then(|| block_device(&mount.source)).flatten();
        let on = |d: &&Device| d.number == mount.number || Some(d.number) == node();
        if let Some(device) = devices.iter().find(on)
            && (wanted == Use::Any || mount.writable)
        {
            users.push(device.user(&format!("the file system mounted on {}", mount.point)));
        }
    }
    users
}

fn swaps(devices: &[Device]) -> Vec<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let nodes = table.lines().skip(1).filter_map(|line| block_device(&plain(line.split(' ').next()?)));
    let found = nodes.filter_map(|number| devices.iter().find(|d| d.number == number));
    found.map(|device| device.user("the kernel as swap space")).collect()
}

/// Device mapper, RAID and the like that are built on the device.
fn holders(device: &Device) -> Vec<String> {
    let Ok(holders) = fs::read_dir(device.folder.join("holders")) else {
        return Vec::new();
    };
    let mut found: Vec<String> = holders
        .flatten()
        .filter_map(|holder| {
            let node = holder.file_name().into_string().ok()?;
            let name = fs::read_to_string(holder.path().join("dm/name"));
            let name = name.map_or(String::new(), |name| format!(", {}", name.trim()));
            Some(device.user(&format!("the device /dev/{node}{name} on top of it")))
        })
        .collect();
    found.sort();
    found
}

fn block_device(path: &str) -> Option<u64> {
    let found = fs::metadata(Path::new(path)).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

struct Mount {
    number: u64,
    point: String,
    source: String,
    /// By its file system: one mount may be read-only and another of the same not.
    writable: bool,
}

impl Mount {
    /// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`
    fn parse(line: &str) -> Option<Mount> {
        let (mount, fs) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let number = device_number(mount.next()?)?;
        let point = plain(mount.nth(1)?);
        let mut fs = fs.split(' ').skip(1);
        let source = plain(fs.next()?);
        let writable = fs.next()?.split(',').all(|option| option != "ro");
        Some(Mount { number, point, source, writable })
    }
}

/// Undoes the escapes of these tables: `\040` is a space.
fn plain(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|d| str::from_utf8(d).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_escapes() {
        let line =
            r"36 35 98:1 / /a\040b\134 rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.number, mount.point.as_str()), (libc::makedev(98, 1), r"/a b\"));
        assert_eq!((mount.source.as_str(), mount.writable), ("/dev/sda1", true));
        let mount = Mount::parse("36 35 0:40 /x /y rw - btrfs /dev/sdb ro,space_cache").unwrap();
        assert!(!mount.writable);
        assert!(Mount::parse("36 35 0:40 /x").is_none());
    }

    #[test]
    fn what_is_built_on_a_device_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (node, name) in [("dm-3", Some("vg-root\n")), ("md0", None)] {
            let holder = folder.path().join("holders").join(node);
            fs::create_dir_all(holder.join("dm")).unwrap();
            if let Some(name) = name {
                fs::write(holder.join("dm/name"), name).unwrap();
            }
        }
        let device = Device { number: 0, folder: folder.path().to_owned(), other: Some("sda2".into()) };
        assert_eq!(
            holders(&device),
            ["the device /dev/dm-3, vg-root on top of it (sda2)", "the device /dev/md0 on top of it (sda2)"]
        );
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in ["", "/plain", r"\", r"\9", r"\777"] {
            assert_eq!(plain(text), text);
        }
    }
}
