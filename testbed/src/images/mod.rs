//! Reference images with reproducible content, and an independent compare.
//!
//! The same arguments always give the same bytes. Content comes from
//! [`content::fill`], which can also tell what any offset must hold.
//!
//! Nothing here is flushed to disk: a test that reads around the page cache
//! syncs first.

mod compare;
pub mod content;
mod formats;

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use compare::{Difference, allocated, b3, equal, equal_data};
pub use formats::{filesystem, qcow2, qcow2_overlay};

use crate::error::{Doing, Error, Result};
use content::{Numbers, fill};

/// Content is written in pieces of this many bytes.
const BLOCK: usize = 4 << 20;
/// Extents of a sparse image start and end on multiples of this.
const PAGE: u64 = 4096;
/// Largest extent of a sparse image, in pages.
const LARGEST: u64 = 256;

/// Makes a file of `size` bytes, dense, of bytes that do not compress.
///
/// # Errors
/// When the file cannot be written.
pub fn random(path: &Path, size: u64, seed: u64) -> Result<()> {
    let file = create(path, size)?;
    write(&file, path, 0..size, |offset, buffer| fill(seed, offset, buffer))
}

/// Makes a file of `size` bytes with about `data_bytes` of data in scattered
/// extents of 4 KiB to 1 MiB, holes between; returns the extents.
///
/// # Errors
/// When more data than size is asked for or the file cannot be written.
pub fn sparse(path: &Path, size: u64, data_bytes: u64, seed: u64) -> Result<Vec<Range<u64>>> {
    let extents = scatter(size, data_bytes, seed)?;
    let file = create(path, size)?;
    for extent in &extents {
        write(&file, path, extent.clone(), |offset, buffer| fill(seed, offset, buffer))?;
    }
    Ok(extents)
}

/// Fills `path` with `byte`: a block device as it is (`size` bytes of it), a
/// file made anew.
///
/// # Errors
/// When it cannot be written.
pub fn dirty(path: &Path, size: u64, byte: u8) -> Result<()> {
    let device = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let file = if device {
        OpenOptions::new().write(true).open(path).doing(|| format!("opening {}", path.display()))?
    } else {
        create(path, size)?
    };
    write(&file, path, 0..size, |_, buffer| buffer.fill(byte))?;
    file.sync_data().doing(|| format!("flushing {}", path.display()))
}

fn create(path: &Path, size: u64) -> Result<File> {
    let file = File::create(path).doing(|| format!("creating {}", path.display()))?;
    file.set_len(size).doing(|| format!("sizing {}", path.display()))?;
    Ok(file)
}

fn write(file: &File, path: &Path, range: Range<u64>, mut content: impl FnMut(u64, &mut [u8])) -> Result<()> {
    let mut buffer = vec![0; BLOCK.min(usize::try_from(range.end - range.start).unwrap_or(BLOCK))];
    let mut offset = range.start;
    while offset < range.end {
        let left = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let piece = &mut buffer[..length];
        content(offset, piece);
        file.write_all_at(piece, offset).doing(|| format!("writing {}", path.display()))?;
        offset += length as u64;
    }
    Ok(())
}

/// Chooses where the data of a sparse image lies: never two extents side by side.
fn scatter(size: u64, data_bytes: u64, seed: u64) -> Result<Vec<Range<u64>>> {
    let mut numbers = Numbers::new(seed);
    let mut lengths = Vec::new();
    let mut left = data_bytes / PAGE;
    while left > 0 {
        let length = (1 + numbers.below(LARGEST)).min(left);
        lengths.push(length);
        left -= length;
    }
    let data: u64 = lengths.iter().sum();
    let mut holes = (size / PAGE).saturating_sub(data);
    if holes + 1 < lengths.len() as u64 {
        return Err(Error::Invalid(format!(
            "{data_bytes} bytes of data with holes do not fit in {size} bytes"
        )));
    }
    let mut extents = Vec::with_capacity(lengths.len());
    let mut page = 0;
    for (done, length) in lengths.iter().enumerate() {
        let following = (lengths.len() - done - 1) as u64;
        let least = u64::from(done > 0);
        // Twice the mean, so that the holes are used up by the end; the ones
        // that must still separate later extents are kept back.
        let mean = (holes - following) / (following + 1);
        let hole = numbers.below(2 * mean + 1).clamp(least, (holes - following).max(least));
        page += hole;
        holes -= hole;
        extents.push(page * PAGE..(page + length) * PAGE);
        page += length;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_apart_and_inside_whatever_the_size() {
        for (size, data) in [(1 << 30, 1 << 28), (10 << 20, 9 << 20), (4096, 4096), (5000, 0)] {
            for seed in 0..50 {
                let extents = scatter(size, data, seed).expect("fits");
                let total: u64 = extents.iter().map(|e| e.end - e.start).sum();
                assert_eq!(total, data / PAGE * PAGE);
                assert!(extents.windows(2).all(|pair| pair[0].end < pair[1].start));
                assert!(extents.last().is_none_or(|last| last.end <= size));
            }
        }
        assert!(scatter(1 << 20, 2 << 20, 1).is_err());
    }
}
