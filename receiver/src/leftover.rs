//! Part files of earlier attempts: which one may be cleared away, and which must stay.
//!
//! A name that ends like a part file's proves nothing: it may be a link to somebody's image, the
//! source itself, or a file that another user holds open to change the copy later. So a left-over
//! is removed only when it carries our mark, or holds no data at all, and nobody else has it; and it
//! is never written again: the new attempt makes a new file.

use std::ffi::OsStr;

use blockio::{Identity, Image};
use proto::control::Failure;
use proto::manifest::{ImageEntry, Storage};
use rustix::fs::{self, AtFlags, FileType, FlockOperation, Stat, XattrFlags};
use rustix::io::Errno;

use crate::target::{Target, fd};

/// What a part file's name ends in.
const SUFFIX: &str = ".vmferry-part";
/// The attribute that a part file carries until it is complete. `cp` does not copy it.
const MARK: &str = "user.vmferry.part";

/// The name of a target's part file.
pub(crate) fn part_name(target: &Target) -> String {
    format!("{}{SUFFIX}", target.name)
}

/// Marks a new part file. A file system without attributes has none: there a left-over is not
/// recognised, and has to be removed by hand.
pub(crate) fn mark(image: &Image) {
    let _ = fs::fsetxattr(image.file(), MARK, b"1", XattrFlags::empty());
}

/// Takes the mark off a file that is complete.
pub(crate) fn unmark(image: &Image) {
    let _ = fs::fremovexattr(image.file(), MARK);
}

/// Keeps other jobs away from a part file, as long as it is open.
///
/// # Errors
/// Another job has it.
pub(crate) fn lock(image: &Image) -> Result<(), Failure> {
    match fs::flock(image.file(), FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Failure::new(
            3,
            format!(
                "{} is being written by another vmferry job: wait for it or end it",
                image.path().display()
            ),
        )),
        // No locks on this file system: the name alone must do.
        _ => Ok(()),
    }
}

/// Whether a file is one of the job's sources. The device is not compared: two hosts that share a
/// file system give it different numbers, but time of change and inode are the same on both.
pub(crate) fn is_source(stat: &Stat, images: &[ImageEntry]) -> bool {
    let nanos = |seconds: i64, rest: u64| seconds.saturating_mul(1_000_000_000).saturating_add(rest as i64);
    images.iter().any(|image| {
        let source = &image.identity;
        (stat.st_ino, stat.st_size as u64) == (source.ino, image.size)
            && nanos(stat.st_mtime, stat.st_mtime_nsec) == source.mtime_ns
            && nanos(stat.st_ctime, stat.st_ctime_nsec) == source.ctime_ns
    })
}

/// Whether a claimed device is the job's source: [`is_source`] for a device, whose node has no size.
pub(crate) fn is_source_device(device: &Identity, image: &ImageEntry) -> bool {
    let source = &image.identity;
    image.sector.is_some()
        && (device.ino, device.size, device.mtime_ns) == (source.ino, image.size, source.mtime_ns)
}

/// Whether writing this image would write one of the job's sources: on one host, a disk has many
/// names.
pub(crate) fn is_on_a_source<'a>(image: &Image, images: &'a [ImageEntry]) -> Option<&'a ImageEntry> {
    let storage = image.storage();
    let ours = Storage::new(&storage.is, &storage.on);
    images.iter().find(|source| source.storage.overlaps(&ours))
}

/// Looks at what stands where the part file will be made; with `clear`, removes it. Says whether
/// there was a left-over of ours.
///
/// # Errors
/// A sentence, exit code 3, for everything that is not a left-over of ours that nobody uses.
pub(crate) fn check(target: &Target, images: &[ImageEntry], clear: bool) -> Result<bool, Failure> {
    let name = part_name(target);
    let path = target.folder_path.join(&name);
    let shown = path.display();
    let refuse = |what: &str| {
        let next = "move it away, or give the destination another name";
        Err(Failure::new(3, format!("{shown}, where the copy would grow, {what}: {next}")))
    };
    let stat = match fs::statat(fd(target), &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return refuse(&format!("cannot be looked at ({e})")),
        Ok(stat) => stat,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("is not a regular file");
    }
    if is_source(&stat, images) {
        return refuse("is the source itself");
    }
    let image = match Image::open_at(fd(target), OsStr::new(&name), &path, false) {
        Ok(image) => image,
        Err(e) => return refuse(&format!("belongs to somebody else ({})", e.io())),
    };
    lock(&image)?;
    let marked = fs::fgetxattr(image.file(), MARK, &mut [0u8; 8]).is_ok();
    // A receiver that was killed before it could mark its file. Both are asked: a file system may
    // lie about holes.
    let holds_nothing = stat.st_blocks == 0 && image.next_data(0).is_ok_and(|data| data.is_none());
    if !(marked || holds_nothing) || stat.st_nlink != 1 || stat.st_uid != rustix::process::geteuid().as_raw()
    {
        return refuse("exists and is not an unfinished copy of this user's");
    }
    match image.users() {
        Ok(users) if users.is_empty() => {}
        Ok(users) => return refuse(&format!("is in use by {}", users.join(", "))),
        Err(e) => return refuse(&format!("cannot be looked at ({})", e.io())),
    }
    if clear && let Err(e) = fs::unlinkat(fd(target), &name, AtFlags::empty()) {
        return refuse(&format!("is left from an earlier attempt and cannot be removed ({e})"));
    }
    Ok(true)
}
