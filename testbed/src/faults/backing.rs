//! Work on the backing folder that the calls have in common.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use fuser::{FileHandle, FileType, INodeNo, OpenAccMode, OpenFlags, ReplyDirectory, Request, TimeOrNow};
use rustix::fs::{CWD, Timespec, Timestamps};

use super::power::Cache;
use super::tree::{Tree, attributes};
use super::{DirectIo, Shared};

/// Serves the calls.
#[derive(Clone, Debug)]
pub(super) struct Passthrough {
    tree: Arc<Mutex<Tree>>,
    pub(super) shared: Shared,
    /// Of a disk that can lose power. Locked before the tree, by whoever changes anything.
    cache: Option<Arc<Mutex<Cache>>>,
}

impl Passthrough {
    pub(super) fn new(backing: &Path, shared: Shared, loses_power: bool) -> io::Result<Self> {
        let backing = backing.canonicalize()?;
        let cache = loses_power.then(|| Cache::new(&backing)).transpose()?;
        let tree = Arc::new(Mutex::new(Tree::new(&backing)));
        Ok(Self { tree, shared, cache: cache.map(|cache| Arc::new(Mutex::new(cache))) })
    }

    /// What may be lost with the power, on a disk that can lose it.
    pub(super) fn cache(&self) -> Option<MutexGuard<'_, Cache>> {
        self.cache.as_ref().map(|cache| cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Each change of the tree is whole before anything can panic.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.tree().path(parent)?.join(name))
    }

    pub(super) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        self.tree().file(handle)
    }

    pub(super) fn entry(&self, path: &Path) -> io::Result<fuser::FileAttr> {
        let found = fs::symlink_metadata(path)?;
        Ok(attributes(self.tree().number(path), &found))
    }

    /// The kernel does not always name the open file that it asks about.
    pub(super) fn attr(&self, number: INodeNo, handle: Option<FileHandle>) -> io::Result<fuser::FileAttr> {
        let (file, path) = {
            let tree = self.tree();
            let named = handle.and_then(|handle| tree.file(handle).ok());
            (named.or_else(|| tree.file_of(number)), tree.path(number))
        };
        let found = match file {
            Some(file) => file.metadata()?,
            None => fs::symlink_metadata(path?)?,
        };
        Ok(attributes(number, &found))
    }

    /// Counts an open, and refuses it when direct I/O is refused there.
    fn admit(&self, flags: i32) -> io::Result<()> {
        let direct = is_direct(flags);
        let mut state = self.shared.lock();
        state.counts.opens += 1;
        state.counts.direct_opens += u64::from(direct);
        if direct && state.faults.direct == DirectIo::RefusedAtOpen {
            return Err(rustix::io::Errno::INVAL.into());
        }
        Ok(())
    }

    pub(super) fn open_existing(&self, number: INodeNo, flags: OpenFlags) -> io::Result<FileHandle> {
        self.admit(flags.0)?;
        let path = self.tree().path(number)?;
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let file = OpenOptions::new().read(true).write(writes).open(path)?;
        Ok(self.tree().opened(number, file))
    }

    pub(super) fn open_new(
        &self,
        request: &Request,
        path: &Path,
        mode: u32,
        flags: i32,
    ) -> io::Result<(fuser::FileAttr, FileHandle)> {
        self.admit(flags)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(mode);
        if flags & libc::O_EXCL != 0 {
            options.create_new(true);
        } else {
            options.create(true).truncate(flags & libc::O_TRUNC != 0);
        }
        let mut cache = self.cache();
        let new = fs::symlink_metadata(path).is_err();
        let file = options.open(path)?;
        if let Some(cache) = cache.as_mut().filter(|_| new) {
            cache.made(path);
        }
        drop(cache);
        own(request, path)?;
        let attr = self.entry(path)?;
        Ok((attr, self.tree().opened(attr.ino, file)))
    }

    pub(super) fn change(&self, number: INodeNo, handle: Option<FileHandle>, to: &Change) -> io::Result<()> {
        // A file without a name has only a handle.
        let path = self.tree().path(number).unwrap_or_default();
        if let Some(size) = to.size {
            let file = match handle.map(|handle| self.file(handle)) {
                Some(file) => file?,
                None => Arc::new(OpenOptions::new().read(true).write(true).open(&path)?),
            };
            let mut cache = self.cache();
            if let Some(cache) = &mut cache {
                cache.about_to_clear(&file, size..u64::MAX)?;
            }
            file.set_len(size)?;
        }
        if let Some(mode) = to.mode {
            fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777))?;
        }
        if to.uid.is_some() || to.gid.is_some() {
            std::os::unix::fs::lchown(&path, to.uid, to.gid)?;
        }
        if to.atime.is_some() || to.mtime.is_some() {
            let times = Timestamps { last_access: timespec(to.atime), last_modification: timespec(to.mtime) };
            rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    pub(super) fn list(&self, number: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        let path = self.tree().path(number)?;
        let mut entries: Vec<_> = fs::read_dir(&path)?.collect::<io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let dots = [".", ".."].map(|name| (number, FileType::Directory, name.into()));
        let rest = entries.iter().map(|entry| {
            let kind = entry.file_type().ok().and_then(FileType::from_std);
            let inode = self.tree().number(&entry.path());
            (inode, kind.unwrap_or(FileType::RegularFile), entry.file_name())
        });
        for (position, (inode, kind, name)) in (1..).zip(dots.into_iter().chain(rest)) {
            if position > offset && reply.add(inode, position, kind, name) {
                break;
            }
        }
        Ok(())
    }
}

/// Attributes that a program sets.
pub(super) struct Change {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
}

pub(super) fn is_direct(flags: i32) -> bool {
    flags & libc::O_DIRECT != 0
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(rustix::fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(rustix::fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}

/// What a program makes belongs to its user, not to us.
pub(super) fn own(request: &Request, path: &Path) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(request.uid()), Some(request.gid()))
}

/// Reads until `buffer` is full or the file ends.
pub(super) fn read_up_to(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
