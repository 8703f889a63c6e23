//! Compares images without any code of the tool under test.

use std::fs::File;
use std::io::Seek;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use super::BLOCK;
use crate::error::{Doing, Error, Result};

/// Why two images are not equal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The first byte that differs.
    #[error("{a} and {b} differ at byte {offset} ({first:#04x} against {second:#04x})")]
    Content {
        /// The first image.
        a: PathBuf,
        /// The second image.
        b: PathBuf,
        /// Where, in bytes from the start.
        offset: u64,
        /// The byte of the first image.
        first: u8,
        /// The byte of the second image.
        second: u8,
    },
    /// One is longer than the other; as far as both go, they were not compared.
    #[error("{a} has {first} bytes, {b} has {second}")]
    Size {
        /// The first image.
        a: PathBuf,
        /// The second image.
        b: PathBuf,
        /// Size of the first, in bytes.
        first: u64,
        /// Size of the second, in bytes.
        second: u64,
    },
    /// One of them could not be read.
    #[error("the images could not be compared")]
    Unreadable(#[source] Error),
}

impl Difference {
    /// Offset of the first byte that differs, for images of one size.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Content { offset, .. } => Some(*offset),
            Self::Size { .. } | Self::Unreadable(_) => None,
        }
    }
}

/// Compares two files or devices byte by byte. Cached pages that are clean are
/// dropped first, so that the disk is what is read.
///
/// # Errors
/// The first [`Difference`], or that one cannot be read.
pub fn equal(a: &Path, b: &Path) -> Result<(), Difference> {
    compare(a, b, |_, offset, size| Ok(offset..size))
}

/// Like [`equal`], for files with holes of terabytes: where both have a hole,
/// nothing is read.
///
/// # Errors
/// As [`equal`].
pub fn equal_data(a: &Path, b: &Path) -> Result<(), Difference> {
    compare(a, b, |files, offset, size| {
        let ask = |file: &File, from, otherwise| match seek(file, from) {
            Err(Errno::NXIO) => Ok(otherwise),
            other => other.doing(|| format!("reading the extents of {} or {}", a.display(), b.display())),
        };
        let [first, second] = files;
        let from = SeekFrom::Data(offset);
        let start = ask(first, from, size)?.min(ask(second, from, size)?);
        let from = SeekFrom::Hole(start);
        Ok(start..ask(first, from, size)?.max(ask(second, from, size)?))
    })
}

/// Compares the parts that `next` names, one after the other: it is given the
/// files, where the last one ended and the size.
fn compare(
    a: &Path,
    b: &Path,
    next: impl Fn([&File; 2], u64, u64) -> Result<Range<u64>>,
) -> Result<(), Difference> {
    let (first, first_size) = open(a).map_err(Difference::Unreadable)?;
    let (second, second_size) = open(b).map_err(Difference::Unreadable)?;
    if first_size != second_size {
        return Err(Difference::Size { a: a.into(), b: b.into(), first: first_size, second: second_size });
    }
    let mut buffers = [vec![0; BLOCK], vec![0; BLOCK]];
    let mut offset = 0;
    while offset < first_size {
        let part = next([&first, &second], offset, first_size).map_err(Difference::Unreadable)?;
        offset = part.start;
        let left = usize::try_from(part.end - part.start).unwrap_or(BLOCK);
        let [x, y] = &mut buffers;
        let (x, y) = (&mut x[..BLOCK.min(left)], &mut y[..BLOCK.min(left)]);
        read(&first, a, offset, x).map_err(Difference::Unreadable)?;
        read(&second, b, offset, y).map_err(Difference::Unreadable)?;
        if x != y {
            let at = x.iter().zip(y.iter()).position(|(x, y)| x != y).unwrap_or(0);
            return Err(Difference::Content {
                a: a.into(),
                b: b.into(),
                offset: offset + at as u64,
                first: x[at],
                second: y[at],
            });
        }
        offset += x.len() as u64;
    }
    Ok(())
}

/// BLAKE3 of a file or device, in hexadecimal as `b3sum` prints it.
///
/// # Errors
/// When it cannot be read.
pub fn b3(path: &Path) -> Result<String> {
    let (file, size) = open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BLOCK];
    let mut offset = 0;
    while offset < size {
        let left = usize::try_from(size - offset).unwrap_or(BLOCK);
        let piece = &mut buffer[..BLOCK.min(left)];
        read(&file, path, offset, piece)?;
        hasher.update(piece);
        offset += piece.len() as u64;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Bytes that the file takes on its disk.
///
/// # Errors
/// When it cannot be looked at.
pub fn allocated(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path).doing(|| format!("looking at {}", path.display()))?;
    Ok(found.blocks() * 512)
}

/// Opens an image and finds its size: a device has none in its metadata.
fn open(path: &Path) -> Result<(File, u64)> {
    let mut file = File::open(path).doing(|| format!("opening {}", path.display()))?;
    let size = file.seek(std::io::SeekFrom::End(0)).doing(|| format!("measuring {}", path.display()))?;
    // Only advice: a file system that does not know it serves its cache.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    Ok((file, size))
}

fn read(file: &File, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
    file.read_exact_at(buffer, offset).doing(|| format!("reading {} at byte {offset}", path.display()))
}
