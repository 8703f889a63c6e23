//! A part file: how it grows, and how it gets its name.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockio::{Engine, Image, SyncKind};
use proto::control::Failure;
use proto::extents::RunSet;
use proto::manifest::ImageEntry;
use rustix::fs::{self, AtFlags, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::{Part, blocking};
use crate::leftover;
use crate::target::{Target, fd, hint};

/// Space reserved ahead of the writes of dense data at once, bytes: the first time, and at most.
const RESERVE: Range<u64> = 8 << 20..1 << 30;
/// Writes to the file wait while fallocate(2) runs, and it waits for those in flight, so few large
/// pieces are best where it only notes extents (ext4 and xfs: 1 GiB in 3 ms), and small ones where
/// it fills pages (tmpfs): a piece that took less than this is followed by one twice as large.
const RESERVE_TIME: Duration = Duration::from_millis(5);

/// A part file. The image in it is the caller's.
#[derive(Debug)]
pub(crate) struct PartFile {
    pub(super) target: Target,
    name: OsString,
    made: (u64, u64),
    pub(super) mark: Option<[u8; 16]>,
    /// All of it was a hole when this run began.
    pub(super) fresh: bool,
    /// It is an older copy by another name, of which there is no other; the bytes that it had.
    pub(super) in_place: Option<u64>,
    /// Something of it was changed.
    pub(super) touched: AtomicBool,
    /// Space is reserved below this byte; changed under the lock of `ahead` alone.
    reserved_to: AtomicU64,
    /// The lock serialises reserving and punching.
    ahead: Mutex<Ahead>,
}

/// What lies above the reserved space.
#[derive(Debug)]
struct Ahead {
    /// What was cleared there: zeros overtake the data before them, as they take no time to
    /// arrive, so they are known before the space around them is reserved.
    cleared: RunSet,
    /// Bytes to reserve next.
    piece: u64,
}

impl PartFile {
    /// Makes the file: new, of full size, all hole, mode 0600, beside its final name so that
    /// it gets the folder's label and attributes, and locked so that no other job takes it.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(super) fn create(
        target: &Target,
        entry: &ImageEntry,
        direct: bool,
    ) -> Result<(PartFile, Image), Failure> {
        let refused = |e: blockio::Error| Failure::new(3, format!("{e}{}", hint(e.kind())));
        let name = OsString::from(leftover::part_name(target));
        let shown = target.folder_path.join(&name);
        let image = Image::create_at(fd(target), &name, &shown, entry.size, direct).map_err(refused)?;
        let mark = leftover::mark(&image);
        leftover::lock(&image)?;
        let file = PartFile::of(target, &image, mark, 0)?;
        if let Err(failure) = target.owner.probe(image.file(), target.path().display()) {
            file.remove();
            return Err(failure);
        }
        Ok((file, image))
    }

    /// What an earlier attempt left. Any of it may hold data, durable or not.
    pub(super) fn resumed(target: &Target, image: &Image) -> Result<PartFile, Failure> {
        let file = PartFile::of(target, image, None, image.size())?;
        target.owner.probe(image.file(), target.path().display())?;
        Ok(file)
    }

    pub(super) fn of(
        target: &Target,
        image: &Image,
        mark: Option<[u8; 16]>,
        reserved_to: u64,
    ) -> Result<PartFile, Failure> {
        let identity = image.identity().map_err(|e| Failure::new(3, e.to_string()))?;
        Ok(PartFile {
            target: target.clone(),
            name: OsString::from(leftover::part_name(target)),
            made: (identity.dev, identity.ino),
            mark,
            fresh: reserved_to == 0,
            in_place: None,
            touched: AtomicBool::new(false),
            reserved_to: AtomicU64::new(reserved_to),
            ahead: Mutex::new(Ahead { cleared: RunSet::default(), piece: RESERVE.start }),
        })
    }

    /// Reserves space for dense data that begins at `start` and is known to reach `end`.
    ///
    /// # Errors
    /// No space left.
    pub(crate) async fn reserve(
        &self,
        engine: &Engine,
        image: &Image,
        start: u64,
        end: u64,
    ) -> Result<(), blockio::Error> {
        if image.in_memory() {
            return Ok(()); // there is no layout to keep in one piece
        }
        // Far enough ahead: nobody waits for a reservation that is not theirs.
        let enough = |to: u64| to >= end.min(start.saturating_add(RESERVE.start / 2));
        if enough(self.reserved_to.load(Ordering::Relaxed)) || end - start < RESERVE.start / 16 {
            return Ok(());
        }
        let mut ahead = self.ahead.lock().await;
        let before = self.reserved_to.load(Ordering::Relaxed);
        if enough(before) {
            return Ok(());
        }
        let started = Instant::now();
        let mut from = start.max(before);
        let to = end.min(from + ahead.piece);
        self.reserved_to.store(to, Ordering::Relaxed);
        for zeros in ahead.cleared.take_below(to) {
            if from < zeros.start {
                engine.allocate(image, from..zeros.start).await?;
            }
            from = from.max(zeros.end);
        }
        if from < to {
            engine.allocate(image, from..to).await?;
        }
        let piece = if started.elapsed() < RESERVE_TIME { ahead.piece * 2 } else { ahead.piece / 2 };
        ahead.piece = piece.clamp(RESERVE.start, RESERVE.end);
        Ok(())
    }

    /// Makes a range read as zero and take no space. The file began as one hole, so only what was
    /// reserved in the meantime needs work.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) async fn clear(
        &self,
        engine: &Engine,
        image: &Image,
        start: u64,
        end: u64,
    ) -> Result<(), blockio::Error> {
        let mut ahead = self.ahead.lock().await;
        let to = self.reserved_to.load(Ordering::Relaxed);
        let later = start.max(to)..end;
        if !later.is_empty() {
            ahead.cleared.insert_new(later);
        }
        let end = end.min(to);
        if start < end { engine.zero(image, start..end).await } else { Ok(()) }
    }

    /// Gives the image its exact size, owner, mode, attributes and name, durably.
    ///
    /// # Errors
    /// A sentence, exit code 1. The part file is still there.
    pub(super) async fn commit(
        self: &Arc<Self>,
        engine: &Engine,
        part: &Part,
        seal: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let (this, image, entry) = (self.clone(), part.image.clone(), part.entry.clone());
        part.say(blocking(move || this.finish(&image, &entry)).await?);
        let failed = |e: blockio::Error| Failure::new(1, e.to_string());
        engine.sync(&part.image, SyncKind::All).await.map_err(failed)?;
        let this = self.clone();
        blocking(move || {
            seal()?;
            this.take_name()
        })
        .await
    }

    /// Exact size and attributes. Returns what the user should know.
    fn finish(&self, image: &Image, entry: &ImageEntry) -> Result<Vec<String>, Failure> {
        let failed = |e: blockio::Error| Failure::new(1, e.to_string());
        if image.identity().map_err(failed)?.size != entry.size {
            // The last write was padded to the alignment.
            image.set_len(entry.size).map_err(failed)?;
        }
        self.dress(image, entry)
    }

    fn take_name(&self) -> Result<(), Failure> {
        let path = self.target.path();
        let name = self.target.name.as_str();
        let folder = fd(&self.target);
        if !self.is_named() {
            let shown = self.target.folder_path.join(&self.name);
            let why = "somebody renamed, replaced or removed it during the copy";
            return Err(Failure::new(1, format!("{} is no longer the copy: {why}", shown.display())));
        }
        let led_to = fs::stat(&self.target.folder_path).and_then(|there| Ok((there, fs::fstat(folder)?)));
        if !led_to.is_ok_and(|(there, ours)| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)) {
            let shown = self.target.folder_path.display();
            let why = "somebody moved, replaced or removed it during the copy";
            return Err(Failure::new(1, format!("{shown} is no longer the folder of the copy: {why}")));
        }
        let renamed = if self.target.replaces {
            fs::renameat(folder, &self.name, folder, name)
        } else {
            match fs::renameat_with(folder, &self.name, folder, name, RenameFlags::NOREPLACE) {
                // Not every file system knows the flag; a link fails on a taken name just as well.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    fs::linkat(folder, &self.name, folder, name, AtFlags::empty())
                        .and_then(|()| fs::unlinkat(folder, &self.name, AtFlags::empty()))
                }
                other => other,
            }
        };
        renamed.map_err(|e| {
            let why = if e == Errno::EXIST { "it appeared during the copy".into() } else { e.to_string() };
            Failure::new(1, format!("cannot give the copy its name {}: {why}", path.display()))
        })?;
        fs::fsync(folder).map_err(|e| {
            // A job that fails leaves nothing, as far as there is a way back.
            let stays = self.target.replaces
                || !self.is_at(OsStr::new(name))
                || fs::unlinkat(folder, name, AtFlags::empty()).is_err();
            let what = format!("; {} is complete, but may not outlast a power cut", path.display());
            let what = if stays { &what } else { "" };
            Failure::new(1, format!("cannot sync folder {}: {e}{what}", self.target.folder_path.display()))
        })
    }

    /// Owner, attributes, mode: in this order, since a change of owner resets mode bits, and never
    /// wider than the source at any moment. What is not possible becomes a notice.
    ///
    /// # Errors
    /// A sentence, exit code 1, when an owner that was asked for cannot be given.
    fn dress(&self, image: &Image, entry: &ImageEntry) -> Result<Vec<String>, Failure> {
        let file = image.file();
        let path = self.target.path();
        let mut notices: Vec<String> = self.target.owner.apply(image, entry, &path)?.into_iter().collect();
        for (name, value) in &entry.xattrs {
            if let Err(e) = fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty()) {
                notices.push(format!("{}: attribute {name} could not be kept: {e}", path.display()));
            }
        }
        leftover::unmark(image.file());
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        if let Err(e) = fs::fchmod(file, mode) {
            notices.push(format!("{}: mode {:o} could not be set: {e}", path.display(), entry.mode));
        }
        Ok(notices)
    }

    /// Removes the part file, if the name still means the file that this run made.
    pub(crate) fn remove(&self) {
        if self.is_named() {
            // A part file that cannot be removed does not block the next attempt.
            let _ = fs::unlinkat(fd(&self.target), &self.name, AtFlags::empty());
        }
    }

    /// Whether the part file's name still means the file that this run made.
    fn is_named(&self) -> bool {
        self.is_at(&self.name)
    }

    fn is_at(&self, name: &OsStr) -> bool {
        fs::statat(fd(&self.target), name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|s| (s.st_dev, s.st_ino) == self.made)
    }
}
