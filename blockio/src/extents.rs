//! Which parts of an image hold data.
//!
//! Goal: holes are found by asking the file system (`lseek(2)`, SEEK_DATA and SEEK_HOLE), not by
//! reading them. Non-goal: runs of zeros inside data; they are found where the data are read.
//! Invariant: when in doubt it is data.

use crate::error::Error;
use crate::image::Image;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::ops::Range;

impl Image {
    /// How many bytes the image takes on its file system (`st_blocks` of `stat(2)`, × 512); a
    /// device takes all of its size.
    ///
    /// # Errors
    ///
    /// Whatever `fstat(2)` says.
    pub fn allocated(&self) -> Result<u64, Error> {
        if self.sectors().is_some() {
            return Ok(self.size());
        }
        let blocks = u64::try_from(self.stat()?.st_blocks).unwrap_or(0);
        Ok(blocks.saturating_mul(512))
    }

    /// The first run of data at or after the byte `from`, up to the next hole; `None` when only a
    /// hole is left. All of the rest is data on a device, and where the file system has no map.
    ///
    /// Call [`Image::sync_before_map`] first: the map of unwritten data can be wrong.
    ///
    /// # Errors
    ///
    /// Whatever `lseek(2)` says.
    pub fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        let size = self.size();
        if from >= size {
            return Ok(None);
        }
        if self.sectors().is_some() {
            return Ok(Some(from..size));
        }
        let failed = |e: Errno| Error::on("read the extent map of", self.path(), e).at(from);
        let start = match rustix::fs::seek(self.file(), SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(from..size)),
            Err(e) => return Err(failed(e)),
        };
        if start >= size {
            return Ok(None);
        }
        let end = match rustix::fs::seek(self.file(), SeekFrom::Hole(start)) {
            // A hole where data began a moment ago: somebody punched it in between.
            Ok(end) if end <= start => size,
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::NXIO | Errno::OPNOTSUPP | Errno::NOSYS) => size,
            Err(e) => return Err(failed(e)),
        };
        Ok(Some(start..end))
    }
}
