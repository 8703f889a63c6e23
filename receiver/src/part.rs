//! One image under construction: in a part file, a new one that grows beside its final name and how it
//! takes it, or on a block device in place.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use blockio::{Engine, Image, SyncKind};
use proto::control::Failure;
use proto::extents::RunSet;
use proto::granules;
use proto::manifest::ImageEntry;
use rustix::fs::{self, AtFlags, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use tokio::sync::Mutex;

use crate::delta;
use crate::device::{self, Device};
use crate::ledger::{Head, Ledger, Origin};
use crate::leftover;
use crate::logbook::Logbook;
use crate::resume::{Begin, Resumed};
use crate::target::{Target, fd, hint};

/// Space reserved ahead of the writes of dense data at once, bytes: the first time, and at most.
const RESERVE: Range<u64> = 8 << 20..1 << 30;
/// Writes to the file wait while fallocate(2) runs, and it waits for those in flight, so few large
/// pieces are best where it only notes extents (ext4 and xfs: 1 GiB in 3 ms), and small ones where
/// it fills pages (tmpfs): a piece that took less than this is followed by one twice as large.
const RESERVE_TIME: Duration = Duration::from_millis(5);

/// One image under construction.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) image: Image,
    pub(crate) entry: ImageEntry,
    path: PathBuf,
    place: Place,
    /// What of it is durable.
    pub(crate) logbook: Option<Logbook>,
    notices: std::sync::Mutex<Vec<String>>,
}

#[derive(Debug)]
enum Place {
    File(Arc<PartFile>),
    /// What was there is overwritten and stays where nothing is written.
    Device,
    /// Nothing is written.
    Complete,
}

impl Part {
    /// Makes the part file of a target, or goes on with the one that is there.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn create(
        target: &Target,
        entry: &ImageEntry,
        begin: Begin,
        direct: bool,
    ) -> Result<Part, Failure> {
        let mut notices: Vec<String> =
            device::sector_notice(entry, None, &target.path()).into_iter().collect();
        let (file, image, ledger) = match begin {
            Begin::Fresh(notice) => {
                notices.extend(notice);
                let (file, image) = PartFile::create(target, entry, direct)?;
                (file, image, None)
            }
            Begin::Delta(older) => {
                notices.extend(older.notice);
                let beside = older.beside.is_some();
                let mut file = PartFile::of(
                    target,
                    &older.image,
                    older.mark,
                    if beside { 0 } else { entry.size.max(1) },
                )?;
                file.in_place = older.in_place.then_some(older.size);
                file.touched = AtomicBool::new(older.touched);
                (file, older.image, older.ledger)
            }
            Begin::Resume(Resumed { image, ledger, durable }) => {
                let granules: u64 = durable.iter().map(|run| run.end - run.start).sum();
                notices.push(format!(
                    "{}: {} MiB of {} are durable since an earlier attempt, and are not sent again",
                    target.path().display(),
                    granules,
                    granules::count(entry.size)
                ));
                (PartFile::resumed(target, &image)?, image, Some(ledger))
            }
        };
        let shelf = leftover::shelf(target);
        let logbook = match ledger {
            Some(ledger) => Logbook::open(target.folder.clone(), &shelf, ledger),
            None => {
                let broke =
                    |e: &dyn std::fmt::Display| Failure::new(3, format!("{}: {e}", target.path().display()));
                let copy = leftover::copy_of(image.file(), file.mark).map_err(|e| broke(&e))?;
                let head = Head::new(entry, copy, Origin::Nothing).map_err(|e| broke(&e))?;
                Logbook::draft(target.folder.clone(), &shelf, head)
            }
        };
        let place = Place::File(Arc::new(file));
        let (entry, notices) = (entry.clone(), std::sync::Mutex::new(notices));
        Ok(Part { image, entry, path: target.path(), place, logbook: Some(logbook), notices })
    }

    /// An image that an earlier attempt completed: it stays as it is.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn complete(target: &Target, entry: &ImageEntry, ledger: Ledger) -> Result<Part, Failure> {
        let path = target.path();
        let image = Image::open_at(fd(target), OsStr::new(&target.name), &path, false)
            .map_err(|e| Failure::new(3, e.to_string()))?;
        let logbook = Logbook::open(target.folder.clone(), &leftover::shelf(target), ledger);
        let notices =
            vec![format!("{} is complete since an earlier attempt: it was not sent again", path.display())];
        Ok(Part {
            image,
            entry: entry.clone(),
            path,
            place: Place::Complete,
            logbook: Some(logbook),
            notices: std::sync::Mutex::new(notices),
        })
    }

    /// A device that was claimed.
    pub(crate) fn on(device: Device, entry: &ImageEntry, logbook: Option<Logbook>) -> Part {
        let Device { image, path, notices } = device;
        let (entry, notices) = (entry.clone(), std::sync::Mutex::new(notices));
        Part { image, entry, path, place: Place::Device, logbook, notices }
    }

    /// Where the image will be.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The device that is written in place.
    pub(crate) fn in_place(&self) -> Option<String> {
        matches!(self.place, Place::Device).then(|| self.path.display().to_string())
    }

    /// Whether something of such a copy was changed, which nothing undoes.
    pub(crate) fn is_changed_in_place(&self) -> bool {
        matches!(&self.place, Place::File(file) if file.in_place.is_some() && file.touched.load(Ordering::Relaxed))
    }

    /// Whether it is an older copy that nothing was changed of, which can have its name back.
    pub(crate) fn is_still_the_older_copy(&self) -> bool {
        matches!(&self.place, Place::File(file) if file.in_place.is_some() && !file.touched.load(Ordering::Relaxed))
    }

    /// How a message about a copy that is wrong goes on.
    pub(crate) fn not_kept(&self) -> &'static str {
        match &self.place {
            Place::File(file) if file.in_place.is_some() => "; it keeps its name of an unfinished copy",
            Place::File(_) => "; the copy was not kept",
            // What a device holds then is said at the sender, once for all failures.
            Place::Device | Place::Complete => "",
        }
    }

    /// Adds to what the user should know.
    pub(crate) fn say(&self, notices: Vec<String>) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(notices);
    }

    /// What the user should know since the last call, a sentence each.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        let mut notices = std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner));
        // Support for O_DIRECT may turn out to be missing at the first write.
        notices.extend(self.image.take_notices());
        notices
    }

    /// Makes the segments of a chunk of `len` bytes of the image fit the place.
    pub(crate) fn fit(&self, segments: &mut Vec<Range<usize>>, len: u32) {
        match &self.place {
            Place::File(file) if file.fresh => {}
            // Whatever is not written stays.
            Place::File(_) | Place::Device | Place::Complete => device::fit(segments, len as usize),
        }
    }

    /// Reserves space for dense data that begins at `start` and is known to reach `end`.
    ///
    /// # Errors
    /// No space left.
    pub(crate) async fn reserve(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
        match &self.place {
            Place::File(file) => file.reserve(engine, &self.image, start, end).await,
            Place::Device | Place::Complete => Ok(()),
        }
    }

    /// Makes a range read as zero.
    ///
    /// # Errors
    /// What the file system or the device says.
    pub(crate) async fn clear(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
        self.touch(start);
        match &self.place {
            Place::File(file) => file.clear(engine, &self.image, start, end).await,
            Place::Device => engine.zero(&self.image, start..end).await,
            Place::Complete => Ok(()),
        }
    }

    /// Makes a complete image durable, and gives a file its name and attributes. With `seal` its
    /// ledger says so, for an attempt that may follow.
    ///
    /// # Errors
    /// A sentence, exit code 1.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        engine: &Engine,
        tree: [u8; 32],
        seal: bool,
    ) -> Result<(), Failure> {
        match &self.place {
            Place::File(file) => {
                let part = self.clone();
                let sealing = move || part.logbook.iter().try_for_each(|l| l.seal(&part.image, tree, seal));
                file.commit(engine, self, sealing).await
            }
            Place::Device => device::commit(engine, &self.image).await,
            Place::Complete => Ok(()),
        }
    }

    /// Something is written at byte `at`: from now on an older copy is not what it was.
    pub(crate) fn touch(&self, at: u64) {
        if let Place::File(file) = &self.place
            && file.in_place.is_some_and(|size| at < size)
        {
            file.touched.store(true, Ordering::Relaxed);
        }
    }

    /// What cannot be gone on with is not kept, where that is possible. An older copy that is changed
    /// in place is never removed; as long as nothing was changed it gets its name back.
    pub(crate) fn remove(&self) {
        match &self.place {
            Place::File(file) => match file.in_place {
                Some(size) => {
                    if !file.touched.load(Ordering::Relaxed) {
                        delta::give_back(&file.target, &self.image, size);
                    }
                    return;
                }
                None => file.remove(),
            },
            Place::Device => {}
            Place::Complete => return,
        }
        self.logbook.iter().for_each(Logbook::remove);
    }
}

/// A part file. The image in it is the caller's.
#[derive(Debug)]
pub(crate) struct PartFile {
    target: Target,
    name: OsString,
    made: (u64, u64),
    mark: Option<[u8; 16]>,
    /// All of it was a hole when this run began.
    fresh: bool,
    /// It is an older copy by another name, of which there is no other; the bytes that it had.
    in_place: Option<u64>,
    /// Something of it was changed.
    touched: AtomicBool,
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
    fn create(target: &Target, entry: &ImageEntry, direct: bool) -> Result<(PartFile, Image), Failure> {
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
    fn resumed(target: &Target, image: &Image) -> Result<PartFile, Failure> {
        let file = PartFile::of(target, image, None, image.size())?;
        target.owner.probe(image.file(), target.path().display())?;
        Ok(file)
    }

    fn of(
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
    async fn commit(
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

/// Calls that wait for the disk, away from the threads that keep the connection alive.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let broke = |e| Err(Failure::new(1, format!("a task broke down: {e}")));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(broke)
}
