//! Block devices as destinations: overwritten in place, since they have neither a second name nor a
//! size that could change.
//!
//! Goals: a device that anybody uses is never touched, not even by force; bytes past the end of the
//! image stay as they are, also inside its last sector; what should be zero is written as zero,
//! whatever was there. The node's owner, mode and attributes are not ours to change.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use blockio::{Engine, Image, SyncKind};
use proto::control::Failure;
use proto::manifest::ImageEntry;

use crate::leftover;
use crate::target::{hint, refuse};

/// Zeros between data that are fewer than this, bytes, are written with them: they are in the buffer
/// already, and a command to zero costs as much as a write. At least as many as the lanes leave out.
const BRIDGE: usize = 64 << 10;
/// Sector size that a guest sees of an image in a file, unless it is told otherwise, bytes.
const GUESTS_SEE: u32 = 512;

/// A device that will be overwritten.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) image: Image,
    pub(crate) path: PathBuf,
    /// What the user should know before it is, a sentence each.
    pub(crate) notices: Vec<String>,
}

/// Whether a path names a block device, through links as well: that is what the names below
/// `/dev/disk` and `/dev/mapper` are.
pub(crate) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Claims a device for an image, until it is dropped.
///
/// # Errors
/// A sentence, exit code 3: in use, too small, the source itself, not forced.
pub(crate) fn claim(path: &Path, entry: &ImageEntry, force: bool, direct: bool) -> Result<Device, Failure> {
    let shown = path.display();
    if !force {
        return refuse(format!(
            "{shown} is a block device on the destination: --force overwrites what is on it"
        ));
    }
    let image = match Image::claim_device(path, direct) {
        Ok(image) => image,
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            return refuse(format!("{e}: stop, unmount or detach that first (--force does not help)"));
        }
        Err(e) => return refuse(format!("{e}{}", hint(e.kind()))),
    };
    let (size, have) = (entry.size, image.size());
    if have < size {
        return refuse(format!(
            "{shown} on the destination is too small: it has {have} bytes, {} has {size}: give a larger one",
            entry.name
        ));
    }
    let identity = image.identity().map_err(|e| Failure::new(3, e.to_string()))?;
    if leftover::is_source_device(&identity, entry) {
        return refuse(format!("{shown} is the source itself: give another destination"));
    }
    if leftover::is_on_a_source(&image, std::slice::from_ref(entry)).is_some() {
        return refuse(format!(
            "{shown} and the source {} are the same storage under two names, or one lies on the other: give another destination",
            entry.name
        ));
    }
    if image.is_read_only() {
        return refuse(format!(
            "{shown} is read-only on the destination: blockdev --setrw {shown}, or give another one"
        ));
    }
    let mut notices: Vec<String> = Vec::new();
    notices.extend(sector_notice(entry, image.sectors().map(|s| s.logical), path));
    if have > size {
        notices.push(format!(
            "{shown} is {} bytes larger than {}: its last {} bytes stay as they are; a GPT's second copy belongs at the end of the device (sgdisk -e {shown} moves it there)",
            have - size,
            entry.name,
            have - size
        ));
    }
    Ok(Device { image, path: path.to_owned(), notices })
}

/// Partition tables count in sectors: what was written with one size is not read with another.
/// `sector`: of the device at the destination; a file has none.
pub(crate) fn sector_notice(entry: &ImageEntry, sector: Option<u32>, path: &Path) -> Option<String> {
    let (from, to) = (entry.sector.unwrap_or(GUESTS_SEE), sector.unwrap_or(GUESTS_SEE));
    (from != to).then(|| {
        format!(
            "{} has sectors of {from} bytes and {} of {to}: the bytes will be the same, but a partition table in them counts sectors, so a guest may not boot unless it is given {from}-byte sectors (logical_block_size)",
            entry.name,
            path.display()
        )
    })
}

/// Makes segments end with the image, which is `len` bytes in this chunk, and cover all gaps that no
/// zeroing of their own is meant for.
pub(crate) fn fit(segments: &mut Vec<Range<usize>>, len: usize) {
    let mut fitted: Vec<Range<usize>> = Vec::new();
    let mut end = 0;
    for segment in segments.drain(..) {
        let start = if segment.start - end < BRIDGE { end } else { segment.start };
        end = segment.end.min(len);
        match fitted.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => fitted.push(start..end),
        }
    }
    match fitted.last_mut() {
        Some(last) if len - last.end < BRIDGE => last.end = len,
        None if len < BRIDGE => fitted.push(0..len),
        _ => {}
    }
    *segments = fitted;
}

/// Makes what was written durable and visible to whoever reads the device.
///
/// # Errors
/// A sentence, exit code 1.
pub(crate) async fn commit(engine: &Engine, image: &Image) -> Result<(), Failure> {
    engine.sync(image, SyncKind::All).await.map_err(|e| Failure::new(1, e.to_string()))?;
    image.drop_cached();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts and ends, before and after.
    fn fitted(segments: &[(usize, usize)], len: usize) -> Vec<(usize, usize)> {
        let mut segments = segments.iter().map(|(start, end)| *start..*end).collect();
        fit(&mut segments, len);
        segments.iter().map(|s| (s.start, s.end)).collect()
    }

    #[test]
    fn nothing_is_written_past_the_image() {
        assert_eq!(fitted(&[(0, 4096)], 513), [(0, 513)]);
        assert_eq!(fitted(&[(0, 65536), (131_072, 196_608)], 190_000), [(0, 65536), (131_072, 190_000)]);
    }

    #[test]
    fn short_gaps_are_written_long_ones_left_to_the_caller() {
        assert_eq!(fitted(&[(4096, 8192), (12288, 16384)], 20000), [(0, 20000)]);
        assert_eq!(fitted(&[(BRIDGE, 2 * BRIDGE)], 1 << 20), [(BRIDGE, 2 * BRIDGE)]);
        let far = 10 * BRIDGE;
        let both = [(0, 8192), (far, far + 8192)];
        assert_eq!(fitted(&[(4096, 8192), (far, far + 4096)], far + 8192), both);
        assert_eq!(fitted(&[], 1 << 20), []);
        assert_eq!(fitted(&[], 100), [(0, 100)]);
    }
}
