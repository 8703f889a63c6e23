//! One image under construction: in a part file, a new one that grows beside its final name and how it
//! takes it, or on a block device in place.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use blockio::{Engine, Image};
use proto::control::Failure;
use proto::granules;
use proto::manifest::ImageEntry;

use crate::delta;
use crate::device::{self, Device};
use crate::ledger::{Head, Ledger, Origin};
use crate::leftover;
use crate::logbook::Logbook;
use crate::resume::{Begin, Resumed};
use crate::target::{Target, fd};

mod file;

use file::PartFile;

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

/// Calls that wait for the disk, away from the threads that keep the connection alive.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let broke = |e| Err(Failure::new(1, format!("a task broke down: {e}")));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(broke)
}
