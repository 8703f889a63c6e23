//! Disks in a file: a loop device with a chosen sector size, file system and
//! speed.
//!
//! The loop device does direct I/O on its file, so that what the guest side has
//! flushed is on the real disk and nothing hides in a second page cache.
//!
//! [`LoopDisk::power_loss`] stops an ext4 or xfs file system without writing its
//! journal or dirty pages, as a power cut does. A write cache inside the drive,
//! torn sectors and reordering below the file system are not imitated.

mod cap;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use crate::error::{Doing, Error, Result};
use crate::run::{need_root, tool};
pub use cap::Caps;
use cap::Throttle;

/// The ring of a process that was killed lets go of its files a little later than the process.
const LETTING_GO: Duration = Duration::from_secs(2);

/// What a disk carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// Nothing: the bare device.
    None,
    /// ext4 with a journal.
    Ext4,
    /// ext4 without a journal.
    Ext4NoJournal,
    /// btrfs; at least 110 MiB.
    Btrfs,
    /// xfs, which can clone files; at least 300 MiB.
    Xfs,
}

impl Fs {
    fn kind(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ext4 | Self::Ext4NoJournal => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }

    fn make(self, device: &Path) -> Result<()> {
        // Late initialisation would write behind a test's back.
        let eager = "lazy_itable_init=0,lazy_journal_init=0";
        let (program, args): (_, &[&str]) = match self {
            Self::None => return Ok(()),
            Self::Ext4 => ("mke2fs", &["-q", "-F", "-t", "ext4", "-E", eager]),
            Self::Ext4NoJournal => ("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", eager]),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f"]),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f"]),
        };
        tool(program, args.iter().map(OsStr::new).chain([device.as_os_str()])).map(drop)
    }
}

/// A loop device, mounted when it has a file system; dropping it removes the
/// device and its file.
#[derive(Debug)]
pub struct LoopDisk {
    name: String,
    backing: PathBuf,
    device: Option<PathBuf>,
    /// Shared with other mount namespaces; the folder is in it.
    point: Option<PathBuf>,
    folder: Option<PathBuf>,
    mounted: bool,
    fs: Fs,
    throttle: Option<Throttle>,
}

impl LoopDisk {
    /// Makes a disk of `size` bytes in a sparse file in `folder`, with sectors
    /// of `sector` bytes (512 to 4096).
    ///
    /// # Errors
    /// When this process is not root, a tool is missing, the size does not suit
    /// the file system or the kernel refuses.
    pub fn new(folder: &Path, size: u64, fs: Fs, sector: u32) -> Result<Self> {
        need_root()?;
        let name = crate::unique_name();
        let backing = folder.join(format!("{name}.disk"));
        // Built step by step inside the handle: a failure below cleans up.
        let mut disk = Self {
            name,
            backing,
            device: None,
            point: None,
            folder: None,
            mounted: false,
            fs,
            throttle: None,
        };
        let file =
            File::create_new(&disk.backing).doing(|| format!("creating {}", disk.backing.display()))?;
        file.set_len(size).doing(|| format!("sizing {}", disk.backing.display()))?;
        let sector = sector.to_string();
        let args = ["-f", "--show", "--direct-io=on", "-b", &sector].map(OsStr::new);
        let shown = tool("losetup", args.into_iter().chain([disk.backing.as_os_str()]))?;
        let device = PathBuf::from(shown.trim());
        disk.device = Some(device.clone());
        if fs != Fs::None {
            fs.make(&device)?;
            disk.share(folder.join(&disk.name))?;
            disk.mount()?;
        }
        Ok(disk)
    }

    /// The block device.
    pub fn device(&self) -> &Path {
        self.device.as_deref().unwrap_or(Path::new(""))
    }

    /// The file that holds the disk's content.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Where the file system is mounted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a disk without a file system.
    pub fn folder(&self) -> Result<&Path> {
        self.folder.as_deref().ok_or_else(|| Error::Invalid("this disk has no file system".into()))
    }

    /// Limits what the disk takes and gives, in bytes per second: for processes
    /// of the cap group, and for all that is written back or done elsewhere.
    ///
    /// The two limits do not add up to one: a writer in the group and the
    /// write-back of others each have the full rate.
    ///
    /// # Errors
    /// When the cgroup controller is missing or refuses.
    pub fn set_caps(&mut self, caps: Caps) -> Result<()> {
        self.throttle()?.set(caps)
    }

    /// Limits writes to `bytes` per second, [`None`] lifts the limit.
    ///
    /// # Errors
    /// As [`LoopDisk::set_caps`].
    pub fn write_cap(&mut self, bytes: Option<u64>) -> Result<()> {
        let caps = Caps { write: bytes, ..self.throttle()?.caps() };
        self.set_caps(caps)
    }

    /// Limits reads to `bytes` per second, [`None`] lifts the limit.
    ///
    /// # Errors
    /// As [`LoopDisk::set_caps`].
    pub fn read_cap(&mut self, bytes: Option<u64>) -> Result<()> {
        let caps = Caps { read: bytes, ..self.throttle()?.caps() };
        self.set_caps(caps)
    }

    /// A command that runs in the cap group; its process id is the program's own.
    ///
    /// # Errors
    /// As [`LoopDisk::set_caps`].
    pub fn command_in_cap_group(&mut self, program: impl AsRef<OsStr>) -> Result<Command> {
        Ok(self.throttle()?.command(program.as_ref()))
    }

    /// Puts a running process into the cap group.
    ///
    /// # Errors
    /// As [`LoopDisk::set_caps`], and when there is no such process.
    pub fn cap_process(&mut self, pid: u32) -> Result<()> {
        self.throttle()?.admit(pid)
    }

    fn throttle(&mut self) -> Result<&mut Throttle> {
        let throttle = match self.throttle.take() {
            Some(throttle) => throttle,
            None => Throttle::new(&self.name, self.device())?,
        };
        Ok(self.throttle.insert(throttle))
    }

    /// Unmounts and mounts again: everything is on the disk, nothing is cached.
    ///
    /// # Errors
    /// When a file is in use, or there is no file system.
    pub fn remount(&mut self) -> Result<()> {
        self.unmount(UnmountFlags::empty())?;
        self.mount()
    }

    /// Cuts the power: what was not flushed is lost, then mounts again (the
    /// journal is replayed).
    ///
    /// # Errors
    /// When `xfs_io` is missing, the file system is neither ext4 nor xfs, or a
    /// file is still open.
    pub fn power_loss(&mut self) -> Result<()> {
        if !matches!(self.fs, Fs::Ext4 | Fs::Ext4NoJournal | Fs::Xfs) {
            let kind = self.fs.kind();
            return Err(Error::Invalid(format!("no power loss for file system {kind}")));
        }
        let folder = self.folder()?.as_os_str();
        let args = ["-x", "-c", "shutdown"].map(OsStr::new);
        tool("xfs_io", args.into_iter().chain([folder]))?;
        self.remount()
    }

    /// Makes `point`, in which the file system is mounted. Whoever runs in a mount
    /// namespace of his own (`ip netns exec` makes one) sees it come and go: a copy
    /// of the mount there would keep the file system alive.
    fn share(&mut self, point: PathBuf) -> Result<()> {
        let creating = || format!("making the mount point {}", point.display());
        fs::create_dir(&point).doing(creating)?;
        self.point = Some(point.clone());
        mount_bind(&point, &point).doing(creating)?;
        mount_change(&point, MountPropagationFlags::SHARED).doing(creating)?;
        let folder = point.join("disk");
        fs::create_dir(&folder).doing(creating)?;
        self.folder = Some(folder);
        Ok(())
    }

    fn mount(&mut self) -> Result<()> {
        let folder = self.folder()?;
        mount(self.device(), folder, self.fs.kind(), MountFlags::empty(), None)
            .doing(|| format!("mounting {} on {}", self.device().display(), folder.display()))?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self, flags: UnmountFlags) -> Result<()> {
        if self.mounted {
            let folder = self.folder()?;
            let end = Instant::now() + LETTING_GO;
            let unmounted = loop {
                match unmount(folder, flags) {
                    Err(Errno::BUSY) if Instant::now() < end => std::thread::sleep(LETTING_GO / 100),
                    other => break other,
                }
            };
            unmounted.doing(|| format!("unmounting {}", folder.display()))?;
            // The device is free when the file system is gone everywhere.
            let alone = || File::options().read(true).custom_flags(libc::O_EXCL).open(self.device()).is_ok();
            while !alone() && Instant::now() < end {
                std::thread::sleep(LETTING_GO / 100);
            }
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // Nothing is left to do about a step that fails; the next ones still count.
        if self.unmount(UnmountFlags::empty()).is_err() {
            let _ = self.unmount(UnmountFlags::DETACH);
        }
        self.throttle = None;
        if let Some(device) = &self.device {
            let _ = tool("losetup", [OsStr::new("-d"), device.as_os_str()]);
        }
        if let Some(point) = &self.point {
            let _ = unmount(point, UnmountFlags::DETACH);
            let _ = fs::remove_dir(point.join("disk"));
            let _ = fs::remove_dir(point);
        }
        let _ = fs::remove_file(&self.backing);
    }
}
