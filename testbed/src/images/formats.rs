//! Images that other programs make: qcow2 and file systems.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::sparse;
use crate::error::{Doing, Error, Result};
use crate::run::tool;

/// Share of a file system image that is filled with files, in percent.
const FILLED: u64 = 60;
/// One file for this many bytes of image: half of what ext4 makes inodes for.
const BYTES_PER_FILE: u64 = 32 << 10;

/// Makes a qcow2 image of `virtual_size` bytes that holds the same as
/// [`sparse`] with these arguments.
///
/// # Errors
/// When `qemu-img` is missing or fails.
pub fn qcow2(path: &Path, virtual_size: u64, data_bytes: u64, seed: u64) -> Result<()> {
    let raw = path.with_extension(format!("{}.raw", crate::unique_name()));
    let made = sparse(&raw, virtual_size, data_bytes, seed).and_then(|_| {
        let args = ["convert", "-f", "raw", "-O", "qcow2"].map(OsStr::new);
        let files = [raw.as_os_str(), path.as_os_str()];
        tool("qemu-img", args.into_iter().chain(files))
    });
    // The error of the conversion matters more than one of the clean-up.
    let removed = fs::remove_file(&raw).doing(|| format!("removing {}", raw.display()));
    made?;
    removed
}

/// Makes an empty qcow2 image on top of `backing`, which has format
/// `backing_format` (`raw` or `qcow2`).
///
/// # Errors
/// When `qemu-img` is missing or fails.
pub fn qcow2_overlay(path: &Path, backing: &Path, backing_format: &str) -> Result<()> {
    let args = ["create", "-q", "-f", "qcow2", "-F", backing_format, "-b"].map(OsStr::new);
    let files = [backing.as_os_str(), path.as_os_str()];
    tool("qemu-img", args.into_iter().chain(files)).map(drop)
}

/// Makes an ext4 image of `size` bytes, 60 % full with files of `folder` (for
/// example `/usr/share`), or as full as they make it: text, libraries, small
/// files and holes as in a guest's root disk.
///
/// # Errors
/// When `mke2fs` is missing or fails, or files cannot be copied.
pub fn filesystem(path: &Path, size: u64, folder: &Path) -> Result<()> {
    let place = path.parent().unwrap_or(Path::new("."));
    let staging = tempfile::Builder::new()
        .prefix(".vmf-staging")
        .tempdir_in(place)
        .doing(|| format!("making a folder in {}", place.display()))?;
    let mut budget = Budget { bytes: size / 100 * FILLED, files: size / BYTES_PER_FILE };
    budget.copy(folder, staging.path())?;
    let file = fs::File::create(path).doing(|| format!("creating {}", path.display()))?;
    file.set_len(size).doing(|| format!("sizing {}", path.display()))?;
    let args = ["-q", "-F", "-t", "ext4", "-d"].map(OsStr::new);
    let paths = [staging.path().as_os_str(), path.as_os_str()];
    tool("mke2fs", args.into_iter().chain(paths)).map(drop)
}

/// What may still be copied.
struct Budget {
    bytes: u64,
    files: u64,
}

impl Budget {
    /// Copies files and folders in the order of their names, so that the same
    /// folder gives the same image content.
    fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let mut entries = fs::read_dir(from)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .doing(|| format!("reading {}", from.display()))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let found = entry.metadata().doing(|| format!("looking at {}", source.display()))?;
            if self.files == 0 {
                return Ok(());
            }
            if found.is_dir() {
                self.files -= 1;
                fs::create_dir(&target).doing(|| format!("creating {}", target.display()))?;
                self.copy(&source, &target)?;
            } else if found.is_file() && found.len() <= self.bytes {
                self.files -= 1;
                // Small files take a whole block.
                self.bytes = self.bytes.saturating_sub(found.len().next_multiple_of(4096));
                fs::copy(&source, &target).map_err(|source_error| {
                    Error::io(format!("copying {}", source.display()), source_error)
                })?;
            }
        }
        Ok(())
    }
}
