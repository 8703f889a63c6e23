//! One image under construction: in a part file, or on a block device in place.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use blockio::{Engine, Image};
use proto::control::Failure;
use proto::manifest::ImageEntry;

use crate::device::{self, Device};
use crate::file::PartFile;
use crate::target::Target;

/// One image under construction.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) image: Image,
    pub(crate) entry: ImageEntry,
    path: PathBuf,
    place: Place,
    notices: Mutex<Vec<String>>,
}

#[derive(Debug)]
enum Place {
    File(Box<PartFile>),
    /// What was there is overwritten and stays where nothing is written.
    Device,
}

impl Part {
    /// Makes the part file of a target.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn create(
        target: &Target,
        entry: &ImageEntry,
        images: &[ImageEntry],
        direct: bool,
    ) -> Result<Part, Failure> {
        let mut notices: Vec<String> =
            device::sector_notice(entry, None, &target.path()).into_iter().collect();
        let (file, image) = PartFile::create(target, entry, images, direct, &mut notices)?;
        let place = Place::File(Box::new(file));
        let (entry, notices) = (entry.clone(), Mutex::new(notices));
        Ok(Part { image, entry, path: target.path(), place, notices })
    }

    /// A device that was claimed.
    pub(crate) fn on(device: Device, entry: &ImageEntry) -> Part {
        let Device { image, path, notices } = device;
        let (entry, notices) = (entry.clone(), Mutex::new(notices));
        Part { image, entry, path, place: Place::Device, notices }
    }

    /// Where the image will be.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The device that is written in place.
    pub(crate) fn in_place(&self) -> Option<String> {
        matches!(self.place, Place::Device).then(|| self.path.display().to_string())
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
        if matches!(self.place, Place::Device) {
            device::fit(segments, len as usize);
        }
    }

    /// Reserves space for dense data that begins at `start` and is known to reach `end`.
    ///
    /// # Errors
    /// No space left.
    pub(crate) async fn reserve(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
        match &self.place {
            Place::File(file) => file.reserve(engine, &self.image, start, end).await,
            Place::Device => Ok(()),
        }
    }

    /// Makes a range read as zero.
    ///
    /// # Errors
    /// What the file system or the device says.
    pub(crate) async fn clear(&self, engine: &Engine, start: u64, end: u64) -> Result<(), blockio::Error> {
        match &self.place {
            Place::File(file) => file.clear(engine, &self.image, start, end).await,
            Place::Device => engine.zero(&self.image, start..end).await,
        }
    }

    /// Makes a complete image durable, and gives a file its name and attributes.
    ///
    /// # Errors
    /// A sentence, exit code 1.
    pub(crate) async fn commit(&self, engine: &Engine) -> Result<(), Failure> {
        match &self.place {
            Place::File(file) => file.commit(engine, self).await,
            Place::Device => device::commit(engine, &self.image).await,
        }
    }

    /// What was wrong is not kept, where that is possible.
    pub(crate) fn remove(&self) {
        if let Place::File(file) = &self.place {
            file.remove();
        }
    }
}
