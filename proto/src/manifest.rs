//! What a job moves: one entry per image.

use serde::{Deserialize, Serialize};

use crate::geometry::IMAGE_MAX;

/// Images in one job at most.
pub const IMAGES_MAX: usize = 1024;
/// Extended attributes of one image at most, bytes of names and values together (the kernel's
/// XATTR_SIZE_MAX, xattr(7)).
pub const XATTRS_MAX: usize = 64 << 10;

/// Names of one piece of storage at most; a RAID of LVM volumes on partitions has a dozen.
const STORAGE_MAX: usize = 64;

/// One image as the sender found it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageEntry {
    /// File name without folder; of a block device, that of its node.
    pub name: String,
    /// Size, bytes.
    pub size: u64,
    /// Of a block device, its logical sector size, bytes; a file has none. A device's owner and mode
    /// are those that a copy in a file should have: none in particular, and 0600.
    pub sector: Option<u32>,
    /// Bytes allocated at the source: what a sparse copy needs at most. Of a device, its size: what
    /// of it is zero is not known before it is read.
    pub allocated: u64,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `user.*` and POSIX ACL attributes.
    pub xattrs: Vec<(String, Vec<u8>)>,
    /// What tells this source from another one, or from itself after a change.
    pub identity: SourceIdentity,
    /// What it is on the source host, for a destination that is the same host.
    pub storage: Storage,
}

/// Names of a piece of storage, hashed: they compare, and tell nothing else about the host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Storage {
    /// The image itself.
    is: Vec<[u8; 16]>,
    /// What it lies on.
    on: Vec<[u8; 16]>,
}

impl Storage {
    /// Of names that are the same wherever the same thing is meant, and nowhere else.
    pub fn new(is: &[String], on: &[String]) -> Storage {
        let hash = |name: &String| {
            let mut out = [0; 16];
            out.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
            out
        };
        let hashes = |names: &[String]| names.iter().take(STORAGE_MAX).map(hash).collect();
        Storage { is: hashes(is), on: hashes(on) }
    }

    /// Whether writing one writes the other. Two that only lie on the same thing, like two partitions
    /// of a disk, do not.
    pub fn overlaps(&self, other: &Storage) -> bool {
        let within = |a: &Storage, b: &Storage| a.is.iter().any(|x| b.is.contains(x) || b.on.contains(x));
        within(self, other) || within(other, self)
    }
}

/// Tells whether a source is still the one that an earlier attempt read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the epoch.
    pub ctime_ns: i64,
}

/// Checks a manifest that a peer sent.
///
/// # Errors
/// A sentence that names the entry.
pub fn check(images: &[ImageEntry]) -> Result<(), String> {
    if images.is_empty() || images.len() > IMAGES_MAX {
        return Err(format!("a job has 1 to {IMAGES_MAX} images, not {}", images.len()));
    }
    for (i, image) in images.iter().enumerate() {
        check_name(&image.name)?;
        if image.size > IMAGE_MAX {
            return Err(format!("image '{}' claims an impossible size", image.name));
        }
        let attrs: usize = image.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum();
        let known = |n: &str| n.starts_with("user.") || n.starts_with("system.posix_acl_");
        if attrs > XATTRS_MAX || !image.xattrs.iter().all(|(n, _)| known(n)) {
            return Err(format!("image '{}' has extended attributes that are not carried", image.name));
        }
        if image.storage.is.len().max(image.storage.on.len()) > STORAGE_MAX {
            return Err(format!("image '{}' lies on impossibly many devices", image.name));
        }
        if images[..i].iter().any(|other| other.name == image.name) {
            return Err(format!("two images are named '{}': send them in two jobs", image.name));
        }
    }
    Ok(())
}

/// Checks that a name is one plain path component.
///
/// # Errors
/// A sentence that shows the name, its control characters escaped.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = !name.is_empty()
        && name.len() <= 240 // room for the part file's suffix below NAME_MAX = 255
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c.is_control());
    if plain {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot be the name of an image: names are 1 to 240 bytes without '/' and control characters"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> ImageEntry {
        ImageEntry {
            name: name.into(),
            size: 1,
            sector: None,
            allocated: 4096,
            mode: 0o600,
            uid: 0,
            gid: 0,
            xattrs: vec![],
            identity: SourceIdentity { dev: 1, ino: 2, mtime_ns: 3, ctime_ns: 4 },
            storage: Storage::default(),
        }
    }

    #[test]
    fn names_stay_inside_the_folder() {
        let long = "x".repeat(241);
        for bad in ["", ".", "..", "/etc/passwd", "../x", "a/b", "a\0b", "a\nb", "\x1b[2J", &long] {
            assert!(check(&[entry(bad)]).is_err(), "{bad:?}");
        }
        for good in ["vm.qcow2", "..hidden", "a b", "disque-é.img", "-rf"] {
            assert!(check(&[entry(good)]).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn hostile_manifests_are_refused() {
        assert!(check(&[]).is_err());
        assert!(check(&[entry("a"), entry("a")]).is_err());
        let huge = ImageEntry { size: u64::MAX, ..entry("a") };
        assert!(check(&[huge]).is_err());
        let label = ImageEntry { xattrs: vec![("security.selinux".into(), vec![1])], ..entry("a") };
        assert!(check(&[label]).is_err());
        let fat = ImageEntry { xattrs: vec![("user.x".into(), vec![0; XATTRS_MAX])], ..entry("a") };
        assert!(check(&[fat]).is_err());
    }

    #[test]
    fn what_lies_on_what() {
        let storage = |is: &[&str], on: &[&str]| {
            let names = |n: &[&str]| n.iter().map(ToString::to_string).collect::<Vec<_>>();
            Storage::new(&names(is), &names(on))
        };
        let (disk, file) = (storage(&["loop0", "f"], &[]), storage(&["f"], &[]));
        let (one, two) = (storage(&["p1"], &["loop0", "f"]), storage(&["p2"], &["loop0", "f"]));
        for (a, b) in [
            (&disk, &one),
            (&disk, &file),
            (&file, &one),
            (&one, &one),
            (&disk, &storage(&["loop1", "f"], &[])),
        ] {
            assert!(a.overlaps(b) && b.overlaps(a), "{a:?} {b:?}");
        }
        for (a, b) in
            [(&one, &two), (&disk, &storage(&["loop1", "g"], &[])), (&storage(&[], &[]), &storage(&[], &[]))]
        {
            assert!(!a.overlaps(b) && !b.overlaps(a), "{a:?} {b:?}");
        }
    }
}
