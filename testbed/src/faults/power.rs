//! A disk that loses power: what it was not asked to keep may be lost.
//!
//! Programs see every change at once. Beside the folder this keeps what each change replaced, until
//! an `fsync` makes the change durable: of a file its content and size, of a folder its names (a file
//! system with a journal often keeps more than it was asked for; this one does not).
//!
//! [`Cache::power_loss`] then takes changes back, as a seed says:
//! - each 4 KiB block that was not synced is new, or as it was, or torn between two of its sectors;
//! - a size that was not synced is new, or as it was;
//! - of the names in one folder, changes survive in their order up to some point, as in a journal;
//! - what was written before an `fsync` that failed is lost, whatever later ones say.
//!
//! Times, owners and modes survive: a time stamp says nothing about the content. Folders are made and
//! removed durably, and files cannot be moved from one to another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, FileTimes};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::INodeNo;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use tempfile::TempDir;

use super::backing::read_up_to;
use super::tree::Tree;
use crate::images::content::Numbers;

/// What survives or not as one, unless it is torn.
const BLOCK: u64 = 4096;
/// What is never torn.
const SECTOR: u64 = 512;
/// One of so many blocks is torn.
const TORN: u64 = 8;
/// A power loss keeps so many of [`SHARES`] of the changes, from none to all of them.
const SHARES: u64 = 4;

/// Changes that are not durable.
#[derive(Debug)]
pub(super) struct Cache {
    /// By inode number of the folder's file system.
    files: BTreeMap<u64, Dirty>,
    names: Vec<Change>,
    /// Where removed files wait, each under a number.
    graves: TempDir,
    buried: u64,
}

/// A file whose content is not durable.
#[derive(Debug)]
struct Dirty {
    file: Arc<File>,
    /// As the disk has it.
    size: u64,
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    /// What the disk has; [`None`] is zeros.
    before: Option<Vec<u8>>,
    /// An `fsync` has failed since it was written.
    lost: bool,
}

/// What happened to a name.
#[derive(Debug)]
struct Change {
    name: PathBuf,
    now: Now,
    /// What had the name before.
    before: Option<Grave>,
}

/// What has a name now.
#[derive(Debug)]
enum Now {
    Nothing,
    New,
    MovedFrom(PathBuf),
}

#[derive(Debug)]
struct Grave {
    path: PathBuf,
    number: INodeNo,
}

impl Cache {
    /// For the folder `backing`; removed files are kept beside it.
    pub(super) fn new(backing: &Path) -> io::Result<Self> {
        let beside = backing.parent().unwrap_or(backing);
        let graves = tempfile::Builder::new().prefix(".vmf-removed").tempdir_in(beside)?;
        Ok(Self { files: BTreeMap::new(), names: Vec::new(), graves, buried: 0 })
    }

    /// Keeps what is about to be replaced in `range`, bytes.
    pub(super) fn about_to_write(&mut self, file: &Arc<File>, range: Range<u64>) -> io::Result<()> {
        let blocks = &mut self.dirty(file)?.blocks;
        for number in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            match blocks.entry(number) {
                Entry::Occupied(mut known) => known.get_mut().lost = false,
                Entry::Vacant(new) => {
                    new.insert(Block { before: content(file, number)?, lost: false });
                }
            }
        }
        Ok(())
    }

    /// Keeps what is about to become zeros, or to be cut off.
    pub(super) fn about_to_clear(&mut self, file: &Arc<File>, range: Range<u64>) -> io::Result<()> {
        self.dirty(file)?;
        let mut at = range.start;
        while at < range.end
            && let Some(data) = next_data(file, at)?
            && data.start < range.end
        {
            self.about_to_write(file, data.start..data.end.min(range.end))?;
            at = data.end;
        }
        Ok(())
    }

    fn dirty(&mut self, file: &Arc<File>) -> io::Result<&mut Dirty> {
        let found = file.metadata()?;
        let new = || Dirty { file: file.clone(), size: found.len(), blocks: BTreeMap::new() };
        Ok(self.files.entry(found.ino()).or_insert_with(new))
    }

    /// The content of a file becomes durable, but for what was lost.
    pub(super) fn synced(&mut self, file: &File) -> io::Result<()> {
        let found = file.metadata()?;
        if let Some(dirty) = self.files.get_mut(&found.ino()) {
            dirty.size = found.len();
            dirty.blocks.retain(|_, block| block.lost);
        }
        Ok(())
    }

    /// The content of a file could not be made durable.
    pub(super) fn sync_failed(&mut self, file: &File) -> io::Result<()> {
        if let Some(dirty) = self.files.get_mut(&file.metadata()?.ino()) {
            dirty.blocks.values_mut().for_each(|block| block.lost = true);
        }
        Ok(())
    }

    /// The names in a folder become durable.
    pub(super) fn folder_synced(&mut self, folder: &Path) -> io::Result<()> {
        let (durable, rest) = std::mem::take(&mut self.names)
            .into_iter()
            .partition(|change| change.name.parent() == Some(folder));
        self.names = rest;
        let durable: Vec<Change> = durable;
        durable.into_iter().filter_map(|change| change.before).try_for_each(|grave| {
            let found = fs::symlink_metadata(&grave.path)?;
            if found.nlink() == 1 {
                self.files.remove(&found.ino());
            }
            fs::remove_file(grave.path)
        })
    }

    /// A name was made.
    pub(super) fn made(&mut self, name: &Path) {
        self.names.push(Change { name: name.to_owned(), now: Now::New, before: None });
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, name: &Path, tree: &mut Tree) -> io::Result<()> {
        let grave = self.bury(name, tree)?;
        self.names.push(Change { name: name.to_owned(), now: Now::Nothing, before: Some(grave) });
        Ok(())
    }

    /// Gives a file another name in its folder; with `replace` one that is taken.
    pub(super) fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        replace: bool,
        tree: &mut Tree,
    ) -> io::Result<()> {
        if from.parent() != to.parent() || from.is_dir() {
            return Err(Errno::XDEV.into());
        }
        fs::symlink_metadata(from)?;
        let taken = fs::symlink_metadata(to).is_ok();
        if taken && !replace {
            return Err(Errno::EXIST.into());
        }
        let before = taken.then(|| self.bury(to, tree)).transpose()?;
        fs::rename(from, to)?;
        tree.renamed(from, to);
        let now = Now::MovedFrom(from.to_owned());
        self.names.push(Change { name: to.to_owned(), now, before });
        Ok(())
    }

    fn bury(&mut self, name: &Path, tree: &mut Tree) -> io::Result<Grave> {
        let grave =
            Grave { path: self.graves.path().join(self.buried.to_string()), number: tree.number(name) };
        self.buried += 1;
        fs::rename(name, &grave.path)?;
        tree.unlinked(name);
        Ok(grave)
    }

    /// Takes back what did not survive; `seed` chooses. The file system shows what is left, and no
    /// file is open any more.
    pub(super) fn power_loss(&mut self, seed: u64, tree: &mut Tree) -> io::Result<()> {
        tree.close_all();
        let mut dice = Numbers::new(seed);
        let kept = dice.below(SHARES + 1);
        for dirty in std::mem::take(&mut self.files).values() {
            dirty.settle(kept, &mut dice)?;
        }
        let changes = std::mem::take(&mut self.names);
        // By folder: how many of its changes survive.
        let mut surviving: BTreeMap<PathBuf, u64> = BTreeMap::new();
        let mut numbered = Vec::new();
        for change in changes {
            let folder = change.name.parent().unwrap_or(Path::new("")).to_owned();
            let count = surviving.entry(folder.clone()).or_default();
            numbered.push((folder, *count, change));
            *count += 1;
        }
        for count in surviving.values_mut() {
            *count = match kept {
                0 => 0,
                SHARES => *count,
                _ => dice.below(*count + 1),
            };
        }
        let (survived, undone): (Vec<_>, Vec<_>) =
            numbered.into_iter().partition(|(folder, number, _)| surviving.get(folder) > Some(number));
        undone.into_iter().rev().try_for_each(|(_, _, change)| self.undo(change, tree))?;
        let graves = survived.into_iter().filter_map(|(_, _, change)| change.before);
        graves.map(|grave| grave.path).try_for_each(fs::remove_file)
    }

    fn undo(&mut self, change: Change, tree: &mut Tree) -> io::Result<()> {
        match change.now {
            Now::Nothing => {}
            Now::New => {
                let grave = self.bury(&change.name, tree)?;
                fs::remove_file(grave.path)?;
            }
            Now::MovedFrom(from) => {
                fs::rename(&change.name, &from)?;
                tree.renamed(&change.name, &from);
            }
        }
        if let Some(grave) = change.before {
            fs::rename(&grave.path, &change.name)?;
            tree.restored(&change.name, grave.number);
        }
        Ok(())
    }
}

impl Dirty {
    /// Makes the file what the disk has of it.
    fn settle(&self, kept: u64, dice: &mut Numbers) -> io::Result<()> {
        let found = self.file.metadata()?;
        let size = if dice.below(SHARES) < kept { found.len() } else { self.size };
        for (number, block) in &self.blocks {
            let survives = dice.below(SHARES) < kept && !block.lost;
            let torn = dice.below(TORN) == 0 && !block.lost;
            // The sectors from here on are what they were.
            let old = match (survives, torn) {
                (true, false) => continue,
                (_, true) => SECTOR * (1 + dice.below(BLOCK / SECTOR - 1)),
                (false, false) => 0,
            };
            let at = number * BLOCK + old;
            match &block.before {
                Some(before) => self.file.write_all_at(&before[usize::try_from(old).unwrap_or(0)..], at)?,
                None => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&*self.file, hole, at, BLOCK - old)?;
                }
            }
        }
        self.file.set_len(size)?;
        self.file.set_times(FileTimes::new().set_modified(found.modified()?))
    }
}

/// A block of a file; [`None`] is zeros.
fn content(file: &File, number: u64) -> io::Result<Option<Vec<u8>>> {
    let mut block = vec![0; usize::try_from(BLOCK).unwrap_or(0)];
    read_up_to(file, number * BLOCK, &mut block)?;
    Ok(block.iter().any(|byte| *byte != 0).then_some(block))
}

fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
