//! What only block devices have: a size and sector sizes that `ioctl(2)` tells, and a claim.
//!
//! # Goals
//!
//! A device is a row of raw bytes like any other image. It differs in three ways: it cannot grow
//! or shrink, what was on it before stays until it is overwritten, and it may be in use without
//! any process having it open ([`crate::in_use`]).
//!
//! # Non-goals
//!
//! Partition tables, and trust in discard: what a discarded block reads as is the drive's choice.
#![allow(unsafe_code)]

use crate::error::{Error, invalid};
use crate::image::Image;
use crate::in_use;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Sizes of a block device's sectors, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sectors {
    /// What the device is addressed in: no direct transfer is smaller (BLKSSZGET).
    pub logical: u32,
    /// What the drive writes at once (BLKPBSZGET): 4096 on a drive of 512-byte sectors that
    /// imitates them ("512e").
    pub physical: u32,
}

impl Sectors {
    /// What offsets and lengths should be a multiple of, bytes. Larger physical sectors than any
    /// chunk has are left to the drive.
    pub(crate) fn align(self) -> usize {
        let physical = if self.physical <= LARGEST { self.physical } else { 0 };
        (self.logical.max(physical) as usize).max(crate::BLOCK)
    }
}

/// 64 KiB: the kernel's largest logical sector, and the smallest unit that is moved.
const LARGEST: u32 = 64 << 10;

impl Image {
    /// Opens a block device to overwrite it, and claims it until it is closed: O_EXCL (`open(2)`)
    /// keeps away mounts, swap, device mapper, RAID and other claims. Follows symbolic links, as
    /// that is what most names below `/dev/disk` and `/dev/mapper` are.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ResourceBusy`] with all users by name when anybody uses it, or a part of
    /// it, or the whole that it is a part of; [`io::ErrorKind::ReadOnlyFilesystem`] for one that
    /// cannot be written; a sentence for what is no block device; else what `open(2)` says.
    pub fn claim_device(path: &Path, direct: bool) -> Result<Image, Error> {
        let failed = |cause: io::Error| Error::on("overwrite", path, cause);
        let stat = rustix::fs::stat(path).map_err(|e| failed(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(failed(invalid("it is no block device")));
        }
        let busy = |users: Vec<String>| {
            let who = format!("it is in use by {}", users.join(", "));
            failed(io::Error::new(io::ErrorKind::ResourceBusy, who))
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let open = |extra| rustix::io::retry_on_intr(|| rustix::fs::open(path, flags | extra, Mode::empty()));
        // Claims come and go as well: so does a scan for volumes.
        let buffered = match in_use::until(|fd| !matches!(fd, Err(Errno::BUSY)), || open(OFlags::EXCL)) {
            Ok(fd) => fd,
            Err(Errno::BUSY) => {
                let users = in_use::of_device(stat.st_rdev, in_use::Use::Any);
                let users = if users.is_empty() { in_use::claimed(stat.st_rdev) } else { users };
                return Err(busy(users));
            }
            Err(e) => return Err(failed(e.into())),
        };
        let reopen = || open(OFlags::DIRECT);
        let image = Image::assemble(path, buffered, direct.then_some(&reopen))?;
        // From now on QEMU, which makes no claim, keeps away from it. Who has it already?
        image.guard()?;
        let users = image.users_of(in_use::Use::Any)?;
        if users.is_empty() { Ok(image) } else { Err(busy(users)) }
    }

    /// Throws away what the page cache knows of a device (BLKFLSBUF), so that whoever reads it
    /// next reads the disk. Flushes it first. Where that is not permitted (it takes
    /// CAP_SYS_ADMIN), what direct writes did not invalidate stays; on a file it does nothing.
    pub fn drop_cached(&self) {
        if self.sectors().is_some() {
            // SAFETY: `file` is open; BLKFLSBUF takes no argument.
            let _ = unsafe { libc::ioctl(self.file().as_raw_fd(), BLKFLSBUF) };
        }
    }
}

/// Size in bytes.
pub(crate) fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: `fd` is open as long as the borrow lasts, and BLKGETSIZE64 writes one `u64`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

pub(crate) fn sectors(fd: BorrowedFd<'_>) -> io::Result<Sectors> {
    let mut logical: libc::c_int = 0;
    // SAFETY: `fd` is open as long as the borrow lasts, and BLKSSZGET writes one `int`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKSSZGET, &raw mut logical) })?;
    let mut physical: libc::c_uint = 0;
    // SAFETY: as above; BLKPBSZGET writes one `unsigned int`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKPBSZGET, &raw mut physical) })?;
    Ok(Sectors { logical: u32::try_from(logical).unwrap_or(512), physical })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// The requests of `linux/fs.h` that libc does not have, as x86-64 and arm64 number them: letter 0x12
// in the second byte, and where there is one, the argument's size and direction above.
const BLKSSZGET: libc::Ioctl = libc::BLKSSZGET;
const BLKPBSZGET: libc::Ioctl = 0x127b;
const BLKFLSBUF: libc::Ioctl = 0x1261;
/// `_IOR(0x12, 114, size_t)`; the result is a `u64` all the same.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_follows_the_sectors() {
        let align = |logical, physical| Sectors { logical, physical }.align();
        assert_eq!(align(512, 512), 4096);
        assert_eq!(align(512, 4096), 4096);
        assert_eq!(align(4096, 16384), 16384);
        assert_eq!(align(4096, 1 << 20), 4096);
    }
}
