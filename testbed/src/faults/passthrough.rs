//! The file system calls, each passed on to the backing folder.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{CWD, RenameFlags as BackingRename};

use super::backing::{Change, Passthrough, own};

/// The kernel shall believe nothing for longer than one call.
const FORGET_AT_ONCE: Duration = Duration::ZERO;

macro_rules! answer {
    ($reply:expr, $result:expr, |$value:pat_param| $good:expr) => {
        match $result {
            Ok($value) => $good,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

impl Filesystem for Passthrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.child(parent, name).and_then(|path| self.entry(&path));
        answer!(reply, found, |attr| reply.entry(&FORGET_AT_ONCE, &attr, Generation(0)))
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.attr(ino, fh), |attr| reply.attr(&FORGET_AT_ONCE, &attr))
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, atime, mtime };
        let done = self.change(ino, fh, &change).and_then(|()| self.attr(ino, fh));
        answer!(reply, done, |attr| reply.attr(&FORGET_AT_ONCE, &attr))
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.tree().path(ino).and_then(fs::read_link);
        answer!(reply, target, |path| reply.data(path.as_os_str().as_bytes()))
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.child(parent, name).and_then(|path| {
            fs::DirBuilder::new().mode(mode & !umask).create(&path)?;
            own(request, &path)?;
            self.entry(&path)
        });
        answer!(reply, made, |attr| reply.entry(&FORGET_AT_ONCE, &attr, Generation(0)))
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.child(parent, name).and_then(|path| match self.cache() {
            Some(mut cache) => cache.remove(&path, &mut self.tree()),
            None => {
                fs::remove_file(&path)?;
                self.tree().unlinked(&path);
                Ok(())
            }
        });
        answer!(reply, done, |()| reply.ok())
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.child(parent, name).and_then(|path| {
            fs::remove_dir(&path)?;
            self.tree().unlinked(&path);
            Ok(())
        });
        answer!(reply, done, |()| reply.ok())
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.child(parent, name).and_then(|path| {
            let mut cache = self.cache();
            std::os::unix::fs::symlink(target, &path)?;
            if let Some(cache) = &mut cache {
                cache.made(&path);
            }
            own(request, &path)?;
            self.entry(&path)
        });
        answer!(reply, made, |attr| reply.entry(&FORGET_AT_ONCE, &attr, Generation(0)))
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = self.child(parent, name).and_then(|from| {
            let to = self.child(newparent, newname)?;
            if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                return Err(rustix::io::Errno::INVAL.into());
            }
            let flags = BackingRename::from_bits_retain(flags.bits());
            if let Some(mut cache) = self.cache() {
                let replace = !flags.contains(BackingRename::NOREPLACE);
                return cache.rename(&from, &to, replace, &mut self.tree());
            }
            rustix::fs::renameat_with(CWD, &from, CWD, &to, flags)?;
            self.tree().renamed(&from, &to);
            Ok(())
        });
        answer!(reply, done, |()| reply.ok())
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let made = self.child(newparent, newname).and_then(|path| {
            let from = self.tree().path(ino)?;
            let mut cache = self.cache();
            fs::hard_link(from, &path)?;
            if let Some(cache) = &mut cache {
                cache.made(&path);
            }
            self.entry(&path)
        });
        answer!(reply, made, |attr| reply.entry(&FORGET_AT_ONCE, &attr, Generation(0)))
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.open_existing(ino, flags);
        answer!(reply, opened, |handle| reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO))
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made =
            self.child(parent, name).and_then(|path| self.open_new(request, &path, mode & !umask, flags));
        answer!(reply, made, |(attr, handle)| reply.created(
            &FORGET_AT_ONCE,
            &attr,
            Generation(0),
            handle,
            FopenFlags::FOPEN_DIRECT_IO,
        ))
    }

    fn read(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(reply) = self.stall(offset, size, reply) {
            let data = self.faulty_read(fh, offset, size, flags.0);
            answer!(reply, data, |data| reply.data(&data))
        }
    }

    fn write(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.faulty_write(fh, offset, data, flags.0);
        answer!(reply, written, |length| reply.written(length))
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.tree().closed(fh);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.faulty_fsync(fh, datasync), |()| reply.ok())
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.list(ino, offset, &mut reply);
        answer!(reply, listed, |()| reply.ok())
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.faulty_folder_fsync(ino), |()| reply.ok())
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let found = self.tree().path(ino).and_then(|path| Ok(rustix::fs::statvfs(&path)?));
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        answer!(reply, found, |found| reply.statfs(
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            narrow(found.f_bsize),
            narrow(found.f_namemax),
            narrow(found.f_frsize),
        ))
    }

    fn fallocate(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.faulty_fallocate(fh, offset, length, mode), |()| reply.ok())
    }

    fn lseek(&self, _: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        answer!(reply, self.faulty_seek(fh, offset, whence), |at| reply.offset(at))
    }
}
