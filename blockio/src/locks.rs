//! QEMU's image locks, seen from outside QEMU.
//!
//! QEMU takes shared OFD locks (`fcntl(2)`, F_OFD_SETLK) on single bytes of an image: byte
//! 100 + n says "I use permission n", byte 200 + n says "I do not share permission n" (QEMU,
//! `block/file-posix.c`, RAW_LOCK_PERM_BASE and RAW_LOCK_SHARED_BASE). Whether somebody has a
//! byte is asked with a test for an exclusive lock, which is never taken.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Permission 0, BLK_PERM_CONSISTENT_READ, in use.
const USES_CONSISTENT_READ: i64 = 100;
/// Permission 1, BLK_PERM_WRITE, in use.
const USES_WRITE: i64 = 101;
/// Permission 1, BLK_PERM_WRITE, not shared.
const REFUSES_WRITE: i64 = 201;

/// Takes the locks of a reader that wants nobody to write.
pub(crate) fn guard(fd: BorrowedFd<'_>) -> io::Result<()> {
    for byte in [USES_CONSISTENT_READ, REFUSES_WRITE] {
        match fcntl(fd, libc::F_OFD_SETLK, &mut lock(libc::F_RDLCK, byte)) {
            Ok(()) => {}
            Err(e) if unsupported(&e) => return Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another program has it locked for itself",
                ));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether somebody else says that it writes the image.
pub(crate) fn is_written(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = lock(libc::F_WRLCK, USES_WRITE);
    match fcntl(fd, libc::F_OFD_GETLK, &mut lock) {
        Ok(()) => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        Err(e) if unsupported(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

fn lock(kind: i32, byte: i64) -> libc::flock {
    // SAFETY: `flock` is a plain C structure of integers; all zeros is a value of it. Some
    // machines have padding fields, so it can not be written out.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    // F_RDLCK, F_WRLCK and SEEK_SET are 0 to 2.
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = byte;
    lock.l_len = 1;
    lock
}

fn fcntl(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: `fd` is open as long as the borrow lasts, and the OFD commands read and write
        // one `flock`, which `lock` is for the length of the call.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A file system, or a kernel, without these locks: QEMU goes without them there, too.
fn unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}
