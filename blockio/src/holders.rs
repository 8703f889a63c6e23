//! Who may be writing an image now.
//!
//! Goal: a copy of a disk that a guest is still writing is torn, so the user is told who has it,
//! by name. Three sources: QEMU's image locks, open files of other processes (`/proc/*/fd`), and
//! loop devices (their files are open in the kernel, in no process). What the kernel does with
//! devices besides is in [`crate::in_use`].
//!
//! Non-goal: proof. Processes of other users are hidden from all but root, other hosts of a
//! shared file system are seen by their locks at most, and a process that keeps a writable memory
//! mapping after closing the file is not seen.

use crate::error::Error;
use crate::image::Image;
use crate::in_use::{self, Use};
use crate::locks;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// `O_ACCMODE`, `O_PATH` of `open(2)`: the numbers that `/proc/PID/fdinfo/FD` shows.
const ACCESS: u32 = libc::O_ACCMODE as u32;
const PATH_ONLY: u32 = libc::O_PATH as u32;

impl Image {
    /// Who may be writing the image, a phrase each (`qemu-system-x86 (pid 123)`); empty when
    /// nobody was found. This process does not count.
    ///
    /// # Errors
    ///
    /// Whatever `fstat(2)` and `fcntl(2)` say; what of `/proc` is hidden is passed over.
    pub fn users(&self) -> Result<Vec<String>, Error> {
        self.users_of(Use::Writing)
    }

    pub(crate) fn users_of(&self, wanted: Use) -> Result<Vec<String>, Error> {
        let stat = self.stat()?;
        let locked = locks::is_written(self.file()).map_err(|e| Error::on("look at", self.path(), e))?;
        let mut users = match self.sectors() {
            Some(_) => in_use::of_device(stat.st_rdev, wanted),
            None => {
                let disk = Disk::File { dev: stat.st_dev, ino: stat.st_ino };
                [processes(&disk, Use::Writing), loop_devices(&disk, wanted)].concat()
            }
        };
        if locked && users.is_empty() {
            users.push("a QEMU process that is not visible from here (it holds the image lock)".into());
        }
        Ok(users)
    }
}

/// What others may have open.
pub(crate) enum Disk {
    /// A file: file system and inode.
    File { dev: u64, ino: u64 },
    /// Device numbers, those of its partitions among them; a device can have many nodes.
    Devices(Vec<u64>),
}

impl Disk {
    fn is(&self, path: &Path) -> bool {
        let Ok(found) = fs::metadata(path) else { return false };
        match self {
            Disk::File { dev, ino } => (found.dev(), found.ino()) == (*dev, *ino),
            Disk::Devices(numbers) => found.file_type().is_block_device() && numbers.contains(&found.rdev()),
        }
    }
}

/// The processes that have it open for writing, or at all.
pub(crate) fn processes(disk: &Disk, wanted: Use) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found: Vec<(u32, String)> = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if pid != std::process::id() && has_open(&process.path(), disk, wanted) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push((pid, format!("{} (pid {pid})", command.trim())));
        }
    }
    found.sort();
    found.into_iter().map(|(_, phrase)| phrase).collect()
}

fn has_open(process: &Path, disk: &Disk, wanted: Use) -> bool {
    let Ok(files) = fs::read_dir(process.join("fdinfo")) else {
        return false;
    };
    files.flatten().any(|file| {
        // The process, or the file, may be gone by now.
        let Ok(info) = fs::read_to_string(file.path()) else {
            return false;
        };
        let open = process.join("fd").join(file.file_name());
        // Looked at first: a `stat` of any open file could hang on a dead network mount.
        let candidate = match disk {
            Disk::File { ino, .. } => may_write(&info, Some(*ino)),
            Disk::Devices(_) => {
                (wanted == Use::Any || may_write(&info, None))
                    && fs::read_link(&open).is_ok_and(|path| path.starts_with("/dev"))
            }
        };
        candidate && disk.is(&open)
    })
}

/// Whether `/proc/PID/fdinfo/FD` tells of a writable file, and of no other inode than `wanted`
/// (which kernels before 5.14 do not show).
fn may_write(info: &str, wanted: Option<u64>) -> bool {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let Some(flags) = field("flags:").and_then(|f| u32::from_str_radix(f, 8).ok()) else {
        return false;
    };
    let ino = field("ino:").and_then(|i| i.parse::<u64>().ok());
    let other = wanted.zip(ino).is_some_and(|(wanted, ino)| wanted != ino);
    flags & ACCESS != libc::O_RDONLY as u32 && flags & PATH_ONLY == 0 && !other
}

/// The loop devices on top of it: those that can be written, or any.
pub(crate) fn loop_devices(disk: &Disk, wanted: Use) -> Vec<String> {
    let Ok(blocks) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let mut found: Vec<String> = blocks
        .flatten()
        .filter_map(|block| {
            let folder = block.path();
            let backing = fs::read_to_string(folder.join("loop/backing_file")).ok()?;
            let read_only = fs::read_to_string(folder.join("ro")).ok()?;
            let name = block.file_name().into_string().ok()?;
            let counts = wanted == Use::Any || read_only.trim() == "0";
            (counts && disk.is(Path::new(backing.trim_end_matches('\n'))))
                .then(|| format!("the loop device /dev/{name}"))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_tells_writers_from_readers() {
        let info = |flags: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t29\nino:\t77\n");
        assert!(may_write(&info("0100002"), Some(77)));
        assert!(may_write(&info("0100001"), Some(77)));
        assert!(!may_write(&info("0100000"), Some(77)));
        assert!(!may_write(&info("0100002"), Some(78)));
        assert!(!may_write(&info("010000002"), Some(77)), "O_PATH");
        assert!(may_write("pos:\t0\nflags:\t0100002\n", Some(77)), "old kernel");
        assert!(!may_write("", Some(77)));
        assert!(may_write(&info("0100002"), None) && !may_write(&info("0100000"), None));
    }
}
