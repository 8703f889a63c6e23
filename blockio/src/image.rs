//! A disk image on this host: one file or block device, opened twice.
//!
//! # Goals
//!
//! The direct descriptor (`O_DIRECT`) moves the payload past the page cache; the buffered one
//! takes what is not aligned, everything that is not payload, and all of it where the file system
//! does not do direct I/O. Which one an operation uses is decided here and nowhere else.
//!
//! # Non-goals
//!
//! Payload goes through [`crate::Engine`]. Formats, names of part files; how a device is claimed
//! ([`Image::claim_device`]).
//!
//! # Invariants
//!
//! * Both descriptors are on the same inode, and for a device on the same device.
//! * A sync that failed once fails for ever: the kernel reports a lost write to one fsync only
//!   and then counts the page as clean, so a second one proves nothing.

use crate::device::{self, Sectors};
use crate::error::{Error, invalid};
use crate::locks;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An open image. Clones share it; it closes with the last clone and the last operation on it.
#[derive(Clone)]
pub struct Image {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    /// Of a block device.
    sectors: Option<Sectors>,
    /// Turned off when the first direct operation shows that `open(2)` promised too much.
    use_direct: AtomicBool,
    align: usize,
    plain_calls: bool,
    in_memory: bool,
    size: AtomicU64,
    refused: AtomicU8,
    wrote_cached: AtomicBool,
    sync_failure: OnceLock<Error>,
    sync_turn: Arc<tokio::sync::Mutex<()>>,
    notices: Mutex<Vec<String>>,
}

/// A use of `fallocate(2)` that a file system may not have; remembered per image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Feature {
    Allocate = 1,
    Punch = 2,
    ZeroRange = 4,
}

/// What tells an image, and a state of its contents, from another.
///
/// Two equal identities of one image before and after a copy mean that it did not change while it
/// was copied (as far as time stamps tell).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of the file system that it, or a device's node, lies on.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the contents, nanoseconds since 1970; of a device, of the last
    /// write through this node.
    pub mtime_ns: i64,
    /// Time of the last change of contents or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Type and permission bits, `st_mode` of `stat(2)`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Image {
    /// Opens a file or a block device to read it. Follows symbolic links, changes no access time
    /// where that is permitted, and flushes nothing ([`Image::sync_before_map`] does).
    ///
    /// # Errors
    ///
    /// Whatever `open(2)` says, or a sentence for what is neither.
    pub fn open_source(path: &Path, direct: bool) -> Result<Image, Error> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |extra| open(rustix::fs::CWD, path.as_os_str(), flags | extra);
        // NONBLOCK: the open of a FIFO would wait for a writer before it could be refused.
        // NOATIME is for owner and root only.
        let buffered = match open(OFlags::NONBLOCK | OFlags::NOATIME) {
            Err(Errno::PERM) => open(OFlags::NONBLOCK),
            other => other,
        }
        .map_err(|e| Error::on("open", path, e))?;
        let reopen = || match open(OFlags::DIRECT | OFlags::NOATIME) {
            Err(Errno::PERM) => open(OFlags::DIRECT),
            other => other,
        };
        Image::assemble(path, buffered, direct.then_some(&reopen))
    }

    /// Makes a new image of `size` bytes, all of it a hole, below an open folder; mode 0600.
    /// `shown` is its path in messages.
    ///
    /// # Errors
    ///
    /// [`std::io::ErrorKind::AlreadyExists`] when the name is taken, by a symbolic link too, and
    /// whatever else `open(2)` and `ftruncate(2)` say. Nothing is left behind.
    pub fn create_at(
        folder: BorrowedFd<'_>,
        name: &OsStr,
        shown: &Path,
        size: u64,
        direct: bool,
    ) -> Result<Image, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = flags | OFlags::CREATE | OFlags::EXCL;
        let buffered = open(folder, name, create).map_err(|e| Error::on("create", shown, e))?;
        let reopen = || open(folder, name, flags | OFlags::DIRECT);
        let image = Image::assemble(shown, buffered, direct.then_some(&reopen));
        let sized = image.and_then(|image| image.set_len(size).map(|()| image));
        if sized.is_err() {
            // It was made by the open above, with EXCL, so it is ours to remove.
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
        sized
    }

    /// Opens an image that exists below an open folder to go on writing it (resume, delta in
    /// place). Follows no symbolic link; keeps size and contents. `shown` is its path in messages.
    ///
    /// # Errors
    ///
    /// Whatever `open(2)` says (ELOOP for a symbolic link), or a sentence for what is no regular
    /// file.
    pub fn open_at(folder: BorrowedFd<'_>, name: &OsStr, shown: &Path, direct: bool) -> Result<Image, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let buffered =
            open(folder, name, flags | OFlags::NONBLOCK).map_err(|e| Error::on("open", shown, e))?;
        let reopen = || open(folder, name, flags | OFlags::DIRECT);
        let image = Image::assemble(shown, buffered, direct.then_some(&reopen))?;
        if image.sectors().is_some() {
            return Err(Error::on("open", shown, invalid("it is a block device, and a file was expected")));
        }
        Ok(image)
    }

    pub(crate) fn assemble(
        path: &Path,
        buffered: OwnedFd,
        reopen: Option<&dyn Fn() -> Result<OwnedFd, Errno>>,
    ) -> Result<Image, Error> {
        let failed = |cause: std::io::Error| Error::on("open", path, cause);
        let stat = rustix::fs::fstat(&buffered).map_err(|e| failed(e.into()))?;
        let (size, sectors) = admit(&buffered, &stat).map_err(failed)?;
        // NONBLOCK was for the open; on a file system that can not tell whether it would block,
        // io_uring takes it for "fail with EAGAIN".
        rustix::fs::fcntl_getfl(&buffered)
            .and_then(|flags| rustix::fs::fcntl_setfl(&buffered, flags - OFlags::NONBLOCK))
            .map_err(|e| failed(e.into()))?;
        let (able, align) = direct_alignment(&buffered);
        let align = align.max(sectors.map_or(0, Sectors::align));
        let mut direct = None;
        let mut lacking = false;
        if let Some(reopen) = reopen {
            match if able { reopen() } else { Err(Errno::INVAL) } {
                Ok(fd) => {
                    let again = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
                    let same = |s: &Stat| (s.st_dev, s.st_ino, s.st_rdev);
                    if same(&again) != same(&stat) {
                        return Err(failed(std::io::Error::other(
                            "another file took its place while it was opened",
                        )));
                    }
                    direct = Some(fd);
                }
                Err(Errno::INVAL | Errno::OPNOTSUPP) => lacking = true,
                Err(e) => return Err(failed(e.into())),
            }
        }
        let image = Image::with_sectors(path, buffered, direct, align, size, sectors);
        if lacking {
            image.notice_no_direct();
        }
        Ok(image)
    }

    #[cfg(test)]
    pub(crate) fn of(
        path: &Path,
        buffered: OwnedFd,
        direct: Option<OwnedFd>,
        align: usize,
        size: u64,
    ) -> Image {
        Image::with_sectors(path, buffered, direct, align, size, None)
    }

    pub(crate) fn with_sectors(
        path: &Path,
        buffered: OwnedFd,
        direct: Option<OwnedFd>,
        align: usize,
        size: u64,
        sectors: Option<Sectors>,
    ) -> Image {
        let kind = rustix::fs::fstatfs(&buffered).map(|fs| fs.f_type);
        Image {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                plain_calls: kind == Ok(libc::FUSE_SUPER_MAGIC),
                in_memory: kind == Ok(libc::TMPFS_MAGIC),
                buffered,
                use_direct: AtomicBool::new(direct.is_some()),
                direct,
                sectors,
                align,
                size: AtomicU64::new(size),
                refused: AtomicU8::new(0),
                wrote_cached: AtomicBool::new(false),
                sync_failure: OnceLock::new(),
                sync_turn: Arc::default(),
                notices: Mutex::new(Vec::new()),
            }),
        }
    }

    /// The path it is called by in messages.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// It lies on tmpfs, where [`Engine::allocate`](crate::Engine::allocate) fills every page.
    pub fn in_memory(&self) -> bool {
        self.inner.in_memory
    }

    /// Its size in bytes when it was opened, or as [`Image::set_len`] made it since.
    pub fn size(&self) -> u64 {
        self.inner.size.load(Ordering::Relaxed)
    }

    /// The sector sizes of a block device; `None`: it is a file.
    pub fn sectors(&self) -> Option<Sectors> {
        self.inner.sectors
    }

    /// What offsets and lengths must be a multiple of, in bytes, to go past the page cache: from
    /// STATX_DIOALIGN (`statx(2)`) and a device's sectors, at least 4096. What is not aligned works
    /// too, more slowly.
    pub fn align(&self) -> usize {
        self.inner.align
    }

    /// Whether aligned reads and writes go past the page cache. Can turn from true to false with
    /// the first operation.
    pub fn direct(&self) -> bool {
        self.inner.use_direct.load(Ordering::Relaxed)
    }

    /// What had to be given up on this image since the last call, a sentence each.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices_guard())
    }

    /// Sets the size of a file in bytes: cuts off the end, or grows by a hole.
    ///
    /// # Errors
    ///
    /// Whatever `ftruncate(2)` says.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&self.inner.buffered, len))
            .map_err(|e| Error::on("set the size of", self.path(), e))?;
        self.inner.size.store(len, Ordering::Relaxed);
        Ok(())
    }

    /// The buffered descriptor, for mode, owner, attributes. Payload does not belong here.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.inner.buffered.as_fd()
    }

    /// Who this is and in which state, now.
    ///
    /// # Errors
    ///
    /// Whatever `fstat(2)` says, or `ioctl(2)` of a device.
    pub fn identity(&self) -> Result<Identity, Error> {
        let s = self.stat()?;
        let size = match self.sectors() {
            Some(_) => device::size(self.file()).map_err(|e| Error::on("look at", self.path(), e))?,
            None => u64::try_from(s.st_size).unwrap_or(0),
        };
        let ns =
            |s: i64, ns: u64| s.saturating_mul(1_000_000_000).saturating_add(i64::try_from(ns).unwrap_or(0));
        Ok(Identity {
            dev: s.st_dev,
            ino: s.st_ino,
            size,
            #[allow(clippy::useless_conversion, reason = "the types differ between machines")]
            mtime_ns: ns(s.st_mtime.into(), s.st_mtime_nsec.into()),
            #[allow(clippy::useless_conversion, reason = "the types differ between machines")]
            ctime_ns: ns(s.st_ctime.into(), s.st_ctime_nsec.into()),
            mode: s.st_mode,
            uid: s.st_uid,
            gid: s.st_gid,
        })
    }

    /// What shows that its contents may no longer be those of `then`, as the part of a sentence that
    /// names the cause; `None`: nothing does.
    ///
    /// # Errors
    ///
    /// Those of [`Image::identity`].
    pub fn change_since(&self, then: &Identity) -> Result<Option<String>, Error> {
        let now = self.identity()?;
        // A device node's time of change moves when udev sets its owner anew, too.
        let touched = self.sectors().is_none() && now.ctime_ns != then.ctime_ns;
        Ok(if now.size != then.size {
            Some(format!("its size went from {} to {} bytes", then.size, now.size))
        } else {
            (touched || now.mtime_ns != then.mtime_ns).then(|| "its time stamps moved".to_owned())
        })
    }

    /// Whether it is a block device that takes no writes, though it lets itself be opened for them.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let found = self.stat().ok().filter(|_| self.sectors().is_some());
        let found = found.and_then(|stat| crate::in_use::Device::of(stat.st_rdev));
        found.is_some_and(|device| {
            std::fs::read_to_string(device.folder.join("ro")).is_ok_and(|ro| ro.trim() == "1")
        })
    }

    /// Flushes the file, so that the extent map is true: file systems call data that are not on
    /// the disk yet a hole.
    ///
    /// # Errors
    ///
    /// Whatever `fsync(2)` says.
    pub fn sync_before_map(&self) -> Result<(), Error> {
        if let Some(error) = self.sync_failure() {
            return Err(error);
        }
        rustix::io::retry_on_intr(|| rustix::fs::fsync(&self.inner.buffered)).map_err(|e| {
            let error = Error::on("sync", self.path(), e);
            self.remember_sync_failure(&error);
            error
        })
    }

    /// Keeps QEMU from starting to write the image, until the image is closed: takes shared OFD
    /// locks as a reader that does not share "write" does. Where the file system has no locks,
    /// this does nothing.
    ///
    /// Call it before [`Image::users`], so that nobody slips in between.
    ///
    /// # Errors
    ///
    /// Another program has these bytes locked exclusively.
    pub fn guard(&self) -> Result<(), Error> {
        locks::guard(self.file()).map_err(|e| Error::on("lock", self.path(), e))
    }

    pub(crate) fn stat(&self) -> Result<Stat, Error> {
        rustix::fs::fstat(&self.inner.buffered).map_err(|e| Error::on("look at", self.path(), e))
    }

    pub(crate) fn buffered_fd(&self) -> RawFd {
        self.inner.buffered.as_raw_fd()
    }

    /// Whether io_uring must stay away. After a short direct transfer it goes on by itself from
    /// the file position, which FUSE does not move: the rest would be the first bytes once more
    /// (seen on Linux 6.18, where the FUSE server does not ask for FUSE_ASYNC_DIO).
    pub(crate) fn needs_plain_calls(&self) -> bool {
        self.inner.plain_calls
    }

    /// The direct descriptor, as long as it is of use.
    pub(crate) fn direct_fd(&self) -> Option<RawFd> {
        let fd = self.inner.direct.as_ref()?;
        self.direct().then(|| fd.as_raw_fd())
    }

    /// The file system opened with `O_DIRECT` and then refused an aligned operation.
    pub(crate) fn give_up_direct(&self) {
        if self.inner.use_direct.swap(false, Ordering::Relaxed) {
            self.notice_no_direct();
        }
    }

    fn notice_no_direct(&self) {
        self.notices_guard().push(format!(
            "{} does not support direct I/O (O_DIRECT): using the page cache",
            self.path().display()
        ));
    }

    fn notices_guard(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        let notices = &self.inner.notices;
        notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.inner.refused.load(Ordering::Relaxed) & feature as u8 == 0
    }

    pub(crate) fn lacks(&self, feature: Feature) {
        self.inner.refused.fetch_or(feature as u8, Ordering::Relaxed);
    }

    pub(crate) fn mark_cached_write(&self) {
        self.inner.wrote_cached.store(true, Ordering::Relaxed);
    }

    /// Whether written pages may be in the cache since the last call.
    pub(crate) fn take_cached_write(&self) -> bool {
        self.inner.wrote_cached.swap(false, Ordering::Relaxed)
    }

    /// The right to sync: one sync of an image at a time.
    pub(crate) async fn sync_turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.inner.sync_turn).lock_owned().await
    }

    pub(crate) fn sync_failure(&self) -> Option<Error> {
        self.inner.sync_failure.get().cloned()
    }

    pub(crate) fn remember_sync_failure(&self, error: &Error) {
        // The first one stays.
        let _ = self.inner.sync_failure.set(error.clone());
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("path", &self.inner.path)
            .field("size", &self.size())
            .field("direct", &self.direct())
            .finish_non_exhaustive()
    }
}

fn open(folder: impl AsFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::io::retry_on_intr(|| rustix::fs::openat(&folder, name, flags, mode))
}

/// The size in bytes of what can be an image, the sectors of a device, and a sentence for what can
/// be none.
fn admit(fd: &OwnedFd, stat: &Stat) -> std::io::Result<(u64, Option<Sectors>)> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok((u64::try_from(stat.st_size).unwrap_or(0), None)),
        FileType::BlockDevice => return Ok((device::size(fd.as_fd())?, Some(device::sectors(fd.as_fd())?))),
        FileType::Directory => "a folder",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "of an unknown type",
    };
    Err(invalid(format!("it is {what}, and an image must be a regular file or a block device")))
}

/// Whether the file can do direct I/O as far as `statx(2)` knows, and its alignment in bytes.
fn direct_alignment(fd: &OwnedFd) -> (bool, usize) {
    let Ok(statx) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return (true, crate::BLOCK);
    };
    // Not in the mask: kernels before 6.1 and file systems that do not say. Only a try tells.
    if statx.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return (true, crate::BLOCK);
    }
    // Zero means: this file does not do direct I/O.
    let able = statx.stx_dio_mem_align > 0 && statx.stx_dio_offset_align > 0;
    let align = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align) as usize;
    (able, align.max(crate::BLOCK))
}
