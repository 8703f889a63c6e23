//! The ledger: what of an unfinished copy is durable, in a file of its own.
//!
//! ```text
//! 0     head    magic, length, who the copy is and what of; written once, synced, then named
//! 4096  seal    nothing, or: the copy is complete, and this is its digest
//! 8192  granule 0, 64 bytes: kind, granule, count, chaining value, check
//! 8256  granule 1 ...
//! ```
//! A granule has one place, so the file is read in image order however it was written, and a run of
//! zeros is one record, at its first granule; the rest is a hole. Each check is a keyed hash, the key
//! being the head's: a record fits this ledger and this place only.
//!
//! Goals: what is in it has been on the disk before; whatever is damaged is noticed, and makes all of
//! it worthless, since nobody knows what else is. Non-goals: which copy it may be used for (`resume`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use proto::control::KNOWN_MAX;
use proto::extents::RunSet;
use proto::granules::{self, Content, Run};
use proto::manifest::{ImageEntry, SourceIdentity};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a ledger's name ends in.
pub(crate) const SUFFIX: &str = ".vmferry-ledger";
/// What its name ends in before it is whole: as long as the other, which may be as long as a name can be.
pub(crate) const UNNAMED: &str = ".vmferry-ledge~";
const MAGIC: &[u8; 8] = b"vmfledg\x01";
/// Bytes of the head and of the seal, each with its check at the end.
const HEAD: usize = 4096;
const CHECK: usize = 32;
const RECORDS: u64 = 2 * HEAD as u64;
/// Bytes of a record; its check is the last eight.
const RECORD: usize = 64;
const RECORD_BODY: usize = RECORD - 8;
const KIND_DATA: u8 = 1;
const KIND_ZERO: u8 = 2;
/// Records read at once: as many as are told the sender at once.
const BATCH: u64 = KNOWN_MAX as u64;

/// Why a ledger cannot be used.
#[derive(Debug, Error)]
pub(crate) enum LedgerError {
    /// It is not what was written.
    #[error("its ledger is damaged")]
    Damaged,
    /// The file system says no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for LedgerError {
    fn from(e: Errno) -> LedgerError {
        LedgerError::Io(e.into())
    }
}

/// Which copy a ledger is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Random; what the checks are keyed with.
    pub(crate) key: [u8; 32],
    /// The source's name.
    pub(crate) name: String,
    /// Size of the image, bytes.
    pub(crate) size: u64,
    /// The source is a block device.
    pub(crate) device: bool,
    /// The source as it was.
    pub(crate) source: SourceIdentity,
    /// The copy.
    pub(crate) copy: Copy,
    /// What it began with.
    pub(crate) origin: Origin,
    /// When the copy was begun, seconds since 1970.
    pub(crate) begun: u64,
}

/// What tells the copy from another file of its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Copy {
    /// A file.
    File {
        /// Its inode number.
        ino: u64,
        /// When it was made, nanoseconds since 1970, where the file system knows.
        born_ns: Option<i64>,
        /// What its mark says, where the file system has attributes.
        mark: Option<[u8; 16]>,
    },
    /// A block device; what it holds must tell.
    Device,
}

/// What a copy began with.
#[derive(Clone, std::marker::Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// A new file.
    Nothing,
    /// A clone of an older copy: what is not durable may still be the same.
    Clone,
    /// The older copy itself, which is not whole any more.
    InPlace,
}

impl Head {
    /// Of a copy that begins now.
    pub(crate) fn new(entry: &ImageEntry, copy: Copy, origin: Origin) -> Result<Head, lanes::Error> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Head {
            key: lanes::identity::random()?,
            name: entry.name.clone(),
            size: entry.size,
            device: entry.sector.is_some(),
            source: entry.identity,
            copy,
            origin,
            begun: now.map_or(0, |since| since.as_secs()),
        })
    }
}

impl Head {
    /// Whether the source is still what it was when the copy was begun. Of a device nobody can tell.
    pub(crate) fn is_of(&self, entry: &ImageEntry) -> bool {
        let (now, then) = (&entry.identity, &self.source);
        !self.device
            && entry.sector.is_none()
            && self.size == entry.size
            // The number of the device changes when the source's host starts anew.
            && (now.ino, now.mtime_ns, now.ctime_ns) == (then.ino, then.mtime_ns, then.ctime_ns)
    }
}

/// The copy is complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Seal {
    /// Tree digest of what was written.
    pub(crate) tree: [u8; 32],
    /// Time of the last change of the finished copy's contents, nanoseconds since 1970.
    pub(crate) mtime_ns: i64,
}

/// An open ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    head: Head,
    path: PathBuf,
}

/// Where a ledger lies.
#[derive(Clone, Debug)]
pub(crate) struct Shelf<'a> {
    /// The folder.
    pub(crate) folder: BorrowedFd<'a>,
    /// For messages.
    pub(crate) shown: &'a Path,
    /// Its name there.
    pub(crate) name: OsString,
}

impl Shelf<'_> {
    fn path(&self) -> PathBuf {
        self.shown.join(&self.name)
    }

    /// Its name before it is whole.
    pub(crate) fn unnamed(&self) -> OsString {
        let mut name = self.name.clone().into_vec();
        name.truncate(name.len().saturating_sub(SUFFIX.len()));
        name.extend_from_slice(UNNAMED.as_bytes());
        OsString::from_vec(name)
    }

    /// Removes the ledger, if there is one and it is a file of this user's.
    pub(crate) fn clear(&self) {
        let ours = |s: fs::Stat| {
            FileType::from_raw_mode(s.st_mode) == FileType::RegularFile
                && s.st_uid == rustix::process::geteuid().as_raw()
        };
        if fs::statat(self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(ours) {
            let _ = fs::unlinkat(self.folder, &self.name, AtFlags::empty());
        }
    }
}

impl Ledger {
    /// Makes an empty one, durably; replaces what has its name.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn create(shelf: &Shelf<'_>, head: Head) -> Result<Ledger, LedgerError> {
        let fresh = shelf.unnamed();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || fs::openat(shelf.folder, &fresh, flags, Mode::RUSR | Mode::WUSR);
        let file = match open() {
            // Of an attempt that was killed right here.
            Err(Errno::EXIST) => {
                Shelf { name: fresh.clone(), ..shelf.clone() }.clear();
                open()?
            }
            other => other?,
        };
        let file = File::from(file);
        let begun = || {
            file.write_all_at(&block(MAGIC, &head)?, 0)?;
            file.set_len(RECORDS)?;
            file.sync_all()?;
            fs::renameat(shelf.folder, &fresh, shelf.folder, &shelf.name)?;
            // Names the copy as well, which lies beside it.
            fs::fsync(shelf.folder)?;
            Ok(())
        };
        if let Err(e) = begun() {
            let _ = fs::unlinkat(shelf.folder, &fresh, AtFlags::empty());
            return Err(e);
        }
        Ok(Ledger { file, head, path: shelf.path() })
    }

    /// Opens the one that is there. It must be a file of this user's alone: what it says is believed.
    ///
    /// # Errors
    /// Damaged, or what the file system says.
    pub(crate) fn open(shelf: &Shelf<'_>) -> Result<Option<Ledger>, LedgerError> {
        Ledger::open_for(shelf, OFlags::RDWR)
    }

    /// The same, to look at it only.
    ///
    /// # Errors
    /// Damaged, or what the file system says.
    pub(crate) fn read(shelf: &Shelf<'_>) -> Result<Option<Ledger>, LedgerError> {
        Ledger::open_for(shelf, OFlags::RDONLY)
    }

    fn open_for(shelf: &Shelf<'_>, access: OFlags) -> Result<Option<Ledger>, LedgerError> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match fs::openat(shelf.folder, &shelf.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(LedgerError::Damaged),
            other => other?,
        };
        let stat = fs::fstat(&fd)?;
        let private = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1
            && stat.st_mode & 0o022 == 0;
        if !private {
            return Err(LedgerError::Damaged);
        }
        let file = File::from(fd);
        let mut bytes = vec![0; HEAD];
        read_at(&file, &mut bytes, 0)?;
        let head: Head = parse(MAGIC, &bytes).ok_or(LedgerError::Damaged)?;
        Ok(Some(Ledger { file, head, path: shelf.path() }))
    }

    /// Which copy it is about.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// For messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes granules that are durable, durably.
    ///
    /// # Errors
    /// What the file system says; nothing is known of the ledger then, and the job is over.
    pub(crate) fn note(&self, runs: &[Run]) -> io::Result<()> {
        let mut runs: Vec<&Run> = runs.iter().collect();
        runs.sort_by_key(|run| run.start);
        for neighbours in runs.chunk_by(|a, b| a.start + 1 == b.start) {
            let bytes: Vec<u8> = neighbours.iter().flat_map(|run| self.record(run)).collect();
            let Some(first) = neighbours.first() else { continue };
            self.file.write_all_at(&bytes, place(first.start))?;
        }
        // The size may have grown; fdatasync(2) takes care of it.
        self.file.sync_data()
    }

    /// Notes that the copy is complete, durably.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn seal(&self, seal: &Seal) -> Result<(), LedgerError> {
        self.file.write_all_at(&block(&self.head.key, seal)?, HEAD as u64)?;
        Ok(self.file.sync_data()?)
    }

    /// Whether the copy is complete.
    ///
    /// # Errors
    /// What the file system says. A seal that is not whole is none.
    pub(crate) fn sealed(&self) -> io::Result<Option<Seal>> {
        let mut bytes = vec![0; HEAD];
        read_at(&self.file, &mut bytes, HEAD as u64)?;
        Ok(parse(&self.head.key, &bytes))
    }

    /// All granules that are durable.
    ///
    /// # Errors
    /// Damaged, or what the file system says.
    pub(crate) fn durable(&self) -> Result<RunSet, LedgerError> {
        let mut durable = RunSet::new();
        let mut at = 0;
        while let Some((runs, next)) = self.runs(at)? {
            for run in runs {
                if !durable.insert_new(run.range()) {
                    return Err(LedgerError::Damaged);
                }
            }
            at = next;
        }
        Ok(durable)
    }

    /// The runs that begin at granule `from` or later, in order: some of them, and where to go on;
    /// `None`: there are no more.
    ///
    /// # Errors
    /// Damaged, or what the file system says.
    pub(crate) fn runs(&self, from: u64) -> Result<Option<(Vec<Run>, u64)>, LedgerError> {
        let total = granules::count(self.head.size);
        // Most of a ledger of a sparse image is a hole.
        let from = match fs::seek(&self.file, SeekFrom::Data(place(from.min(total)))) {
            Ok(data) => from.max((data.max(RECORDS) - RECORDS) / RECORD as u64),
            Err(Errno::NXIO) => return Ok(None),
            Err(_) => from,
        };
        if from >= total {
            return Ok(None);
        }
        let count = BATCH.min(total - from);
        let mut bytes = vec![0; count as usize * RECORD];
        let got = read_at(&self.file, &mut bytes, place(from))?;
        if got == 0 {
            return Ok(None);
        }
        let mut runs = Vec::new();
        for (granule, record) in (from..).zip(bytes.chunks_exact(RECORD)) {
            if let Some(run) = self.parse(granule, record)? {
                runs.push(run);
            }
        }
        Ok(Some((runs, from + count)))
    }

    fn record(&self, run: &Run) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let (kind, count, cv) = match run.content {
            Content::Data(cv) => (KIND_DATA, 1, cv),
            Content::Zero(count) => (KIND_ZERO, count, [0; 32]),
        };
        bytes[0] = kind;
        bytes[8..16].copy_from_slice(&run.start.to_le_bytes());
        bytes[16..24].copy_from_slice(&count.to_le_bytes());
        bytes[24..RECORD_BODY].copy_from_slice(&cv);
        let check = self.check(&bytes[..RECORD_BODY]);
        bytes[RECORD_BODY..].copy_from_slice(&check);
        bytes
    }

    fn check(&self, body: &[u8]) -> [u8; 8] {
        let mut check = [0; 8];
        check.copy_from_slice(&blake3::keyed_hash(&self.head.key, body).as_bytes()[..8]);
        check
    }

    /// `None` where there is no record.
    fn parse(&self, granule: u64, record: &[u8]) -> Result<Option<Run>, LedgerError> {
        if record.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (body, check) = record.split_at(RECORD_BODY);
        let (start, count) = (word(8), word(16));
        let end = start.checked_add(count).filter(|end| *end <= granules::count(self.head.size));
        if self.check(body) != check || start != granule || end.is_none() || count == 0 {
            return Err(LedgerError::Damaged);
        }
        let content = match record[0] {
            KIND_DATA if count == 1 => {
                let mut cv = [0; 32];
                cv.copy_from_slice(&record[24..RECORD_BODY]);
                Content::Data(cv)
            }
            KIND_ZERO => Content::Zero(count),
            _ => return Err(LedgerError::Damaged),
        };
        Ok(Some(Run { start, content }))
    }
}

fn place(granule: u64) -> u64 {
    RECORDS + granule * RECORD as u64
}

/// Reads up to the end of the file; what lies behind it is zero.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], at + got as u64) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// One block: `lead`, length, content, and the hash of all of it.
fn block(lead: &[u8], content: &impl Serialize) -> Result<Vec<u8>, LedgerError> {
    let body = postcard::to_stdvec(content).map_err(|e| io::Error::other(e.to_string()))?;
    let mut out = Vec::with_capacity(HEAD);
    out.extend_from_slice(lead);
    // A name of 240 bytes is the longest there is in it.
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    out.resize(HEAD - CHECK, 0);
    let check = blake3::hash(&out);
    out.extend_from_slice(check.as_bytes());
    Ok(out)
}

fn parse<T: for<'a> Deserialize<'a>>(lead: &[u8], block: &[u8]) -> Option<T> {
    let (body, check) = block.split_at_checked(HEAD - CHECK)?;
    if blake3::hash(body).as_bytes() != check {
        return None;
    }
    let rest = body.strip_prefix(lead)?;
    let (len, rest) = rest.split_at_checked(4)?;
    let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
    postcard::from_bytes(rest.get(..len)?).ok()
}

/// Whether a file begins like a ledger, whole or not, or holds nothing at all.
pub(crate) fn begins_like_one(file: &File) -> io::Result<bool> {
    let mut lead = [0; MAGIC.len()];
    let got = read_at(file, &mut lead, 0)?;
    Ok(got == 0 || lead == *MAGIC)
}

/// The name of a file's ledger.
pub(crate) fn name_of(image: &OsStr) -> OsString {
    let mut name = image.to_owned();
    name.push(SUFFIX);
    name
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests;
