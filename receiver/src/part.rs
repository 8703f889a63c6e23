//! Part files: the image under construction, and how it takes its name.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockio::{Engine, Image, SyncKind};
use proto::control::Failure;
use proto::extents::RunSet;
use proto::manifest::ImageEntry;
use rustix::fs::{self, AtFlags, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use tokio::sync::Mutex;

use crate::leftover;
use crate::target::{Target, fd, hint};

/// Space reserved ahead of the writes of dense data at once, bytes: the first time, and at most.
const RESERVE: std::ops::Range<u64> = 8 << 20..1 << 30;
/// Writes to the file wait while fallocate(2) runs, and it waits for those in flight, so few large
/// pieces are best where it only notes extents (ext4 and xfs: 1 GiB in 3 ms), and small ones where
/// it fills pages (tmpfs): a piece that took less than this is followed by one twice as large.
const RESERVE_TIME: Duration = Duration::from_millis(5);

/// One image under construction.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) image: Image,
    pub(crate) target: Target,
    pub(crate) entry: ImageEntry,
    name: OsString,
    made: (u64, u64),
    /// Space is reserved below this byte; changed under the lock of `ahead` alone.
    reserved_to: AtomicU64,
    /// The lock serialises reserving and punching.
    ahead: Mutex<Ahead>,
    pub(crate) notices: std::sync::Mutex<Vec<String>>,
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

impl Part {
    /// Makes the part file: new, of full size, all hole, mode 0600, beside its final name so that
    /// it gets the folder's label and attributes, and locked so that no other job takes it.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn create(
        target: &Target,
        entry: &ImageEntry,
        images: &[ImageEntry],
        direct: bool,
    ) -> Result<Part, Failure> {
        let refused = |e: blockio::Error| Failure::new(3, format!("{e}{}", hint(e.kind())));
        let name = OsString::from(leftover::part_name(target));
        let shown = target.folder_path.join(&name);
        let mut notices = Vec::new();
        if leftover::check(target, images, true)? {
            notices.push(format!("an unfinished copy of {} was started over", target.path().display()));
        }
        let image = Image::create_at(fd(target), &name, &shown, entry.size, direct).map_err(refused)?;
        leftover::mark(&image);
        leftover::lock(&image)?;
        let identity = image.identity().map_err(refused)?;
        Ok(Part {
            image,
            target: target.clone(),
            entry: entry.clone(),
            name,
            made: (identity.dev, identity.ino),
            reserved_to: AtomicU64::new(0),
            ahead: Mutex::new(Ahead { cleared: RunSet::default(), piece: RESERVE.start }),
            notices: std::sync::Mutex::new(notices),
        })
    }

    /// Reserves space for dense data that begins at `start` and is known to reach `end`.
    ///
    /// # Errors
    /// No space left.
    pub(crate) async fn reserve(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
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
                engine.allocate(&self.image, from..zeros.start).await?;
            }
            from = from.max(zeros.end);
        }
        if from < to {
            engine.allocate(&self.image, from..to).await?;
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
    pub(crate) async fn clear(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
        let mut ahead = self.ahead.lock().await;
        let to = self.reserved_to.load(Ordering::Relaxed);
        let later = start.max(to)..end;
        if !later.is_empty() {
            ahead.cleared.insert_new(later);
        }
        let end = end.min(to);
        if start < end { engine.zero(&self.image, start..end).await } else { Ok(()) }
    }

    /// Gives the image its exact size, owner, mode, attributes and name, durably.
    ///
    /// # Errors
    /// A sentence, exit code 1. The part file is still there.
    pub(crate) async fn commit(&self, engine: &Engine) -> Result<(), Failure> {
        let failed = |e: blockio::Error| Failure::new(1, e.to_string());
        if self.image.identity().map_err(failed)?.size != self.entry.size {
            // The last write was padded to the alignment.
            self.image.set_len(self.entry.size).map_err(failed)?;
        }
        self.dress();
        engine.sync(&self.image, SyncKind::All).await.map_err(failed)?;
        let path = self.target.path();
        let name = self.target.name.as_str();
        let folder = fd(&self.target);
        if !self.is_named() {
            let shown = self.target.folder_path.join(&self.name);
            let why = "somebody renamed, replaced or removed it during the copy";
            return Err(Failure::new(1, format!("{} is no longer the copy: {why}", shown.display())));
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
            Failure::new(1, format!("cannot sync folder {}: {e}", self.target.folder_path.display()))
        })
    }

    /// Owner, attributes, mode: in this order, since a change of owner resets mode bits, and never
    /// wider than the source at any moment. What is not possible becomes a notice.
    fn dress(&self) {
        let file = self.image.file();
        let path = self.target.path();
        let mut notices = Vec::new();
        if let Ok(now) = self.image.identity()
            && (now.uid, now.gid) != (self.entry.uid, self.entry.gid)
        {
            let owner = Some(fs::Uid::from_raw(self.entry.uid));
            let group = Some(fs::Gid::from_raw(self.entry.gid));
            if fs::fchown(file, owner, group).is_err() {
                let group_kept = fs::fchown(file, None, group).is_ok();
                let (uid, gid) = (self.entry.uid, self.entry.gid);
                notices.push(format!(
                    "{} could not be given {}: it belongs to the receiving user; run the receiver as root, or chown it",
                    path.display(),
                    if group_kept { format!("owner {uid}") } else { format!("owner {uid}:{gid}") }
                ));
            }
        }
        for (name, value) in &self.entry.xattrs {
            if let Err(e) = fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty()) {
                notices.push(format!("{}: attribute {name} could not be kept: {e}", path.display()));
            }
        }
        leftover::unmark(&self.image);
        let mode = Mode::from_raw_mode(self.entry.mode & 0o777);
        if let Err(e) = fs::fchmod(file, mode) {
            notices.push(format!("{}: mode {:o} could not be set: {e}", path.display(), self.entry.mode));
        }
        self.notices.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(notices);
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
        fs::statat(fd(&self.target), &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|s| (s.st_dev, s.st_ino) == self.made)
    }
}
