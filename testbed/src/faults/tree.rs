//! Inode numbers and open files of the pass-through.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo};
use rustix::io::Errno;

/// Which path of the backing folder each inode number stands for, and what is
/// open. Numbers are never used twice.
#[derive(Debug)]
pub(super) struct Tree {
    paths: HashMap<u64, PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    files: HashMap<u64, (INodeNo, Arc<File>)>,
    next: u64,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        let number = INodeNo::ROOT.0;
        Self {
            paths: HashMap::from([(number, root.to_owned())]),
            numbers: HashMap::from([(root.to_owned(), number)]),
            files: HashMap::new(),
            next: number + 1,
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn path(&self, number: INodeNo) -> io::Result<PathBuf> {
        self.paths.get(&number.0).cloned().ok_or_else(|| Errno::NOENT.into())
    }

    pub(super) fn number(&mut self, path: &Path) -> INodeNo {
        if let Some(number) = self.numbers.get(path) {
            return INodeNo(*number);
        }
        let number = self.fresh();
        self.paths.insert(number, path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        INodeNo(number)
    }

    /// The name is gone; a file that takes it later is another one.
    pub(super) fn unlinked(&mut self, path: &Path) {
        if let Some(number) = self.numbers.remove(path) {
            self.paths.remove(&number);
        }
    }

    /// Moves the names at and below `from`.
    pub(super) fn renamed(&mut self, from: &Path, to: &Path) {
        self.unlinked(to);
        let moved: Vec<(PathBuf, u64)> = self
            .numbers
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        for (old, number) in moved {
            let Ok(rest) = old.strip_prefix(from) else { continue };
            // Joining an empty rest would add a slash.
            let new = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            self.numbers.remove(&old);
            self.numbers.insert(new.clone(), number);
            self.paths.insert(number, new);
        }
    }

    /// The name has the file again that had this number.
    pub(super) fn restored(&mut self, path: &Path, number: INodeNo) {
        self.unlinked(path);
        self.paths.insert(number.0, path.to_owned());
        self.numbers.insert(path.to_owned(), number.0);
    }

    pub(super) fn opened(&mut self, number: INodeNo, file: File) -> FileHandle {
        let handle = self.fresh();
        self.files.insert(handle, (number, Arc::new(file)));
        FileHandle(handle)
    }

    pub(super) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        self.files.get(&handle.0).map(|(_, file)| file.clone()).ok_or_else(|| Errno::BADF.into())
    }

    /// Any open file of this inode: a file without a name lives on in it.
    pub(super) fn file_of(&self, number: INodeNo) -> Option<Arc<File>> {
        let mut files = self.files.values();
        let (_, file) = files.find(|(of, _)| *of == number)?;
        Some(file.clone())
    }

    pub(super) fn closed(&mut self, handle: FileHandle) {
        self.files.remove(&handle.0);
    }

    /// Whoever has a file open gets EBADF from now on.
    pub(super) fn close_all(&mut self) {
        self.files.clear();
    }
}

/// What the kernel wants to know of a file.
pub(super) fn attributes(number: INodeNo, found: &Metadata) -> FileAttr {
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let [.., high, low] = found.mode().to_be_bytes();
    FileAttr {
        ino: number,
        size: found.len(),
        blocks: found.blocks(),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(found.file_type()).unwrap_or(FileType::RegularFile),
        perm: u16::from_be_bytes([high, low]) & 0o7777,
        nlink: narrow(found.nlink()),
        uid: found.uid(),
        gid: found.gid(),
        rdev: narrow(found.rdev()),
        blksize: narrow(found.blksize()),
        flags: 0,
    }
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let nanoseconds = Duration::from_nanos(nanoseconds.unsigned_abs());
    match u64::try_from(seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_folder_takes_its_files_along() {
        let mut tree = Tree::new(Path::new("/back"));
        let file = tree.number(Path::new("/back/old/file"));
        let other = tree.number(Path::new("/back/older"));
        tree.renamed(Path::new("/back/old"), Path::new("/back/new"));
        assert_eq!(tree.path(file).ok(), Some("/back/new/file".into()));
        assert_eq!(tree.path(other).ok(), Some("/back/older".into()));
        assert_ne!(tree.number(Path::new("/back/old/file")), file);
    }

    #[test]
    fn a_name_used_again_is_another_file() {
        let mut tree = Tree::new(Path::new("/back"));
        let file = tree.number(Path::new("/back/file"));
        tree.unlinked(Path::new("/back/file"));
        assert!(tree.path(file).is_err());
        assert_ne!(tree.number(Path::new("/back/file")), file);
    }
}
