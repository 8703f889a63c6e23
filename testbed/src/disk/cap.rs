//! Limits the speed of a block device with the blkio controller of cgroup v1.
//!
//! A writer is throttled by the group it is in, write-back of dirty pages by
//! the root group: so both get the limit. cgroup v2 has no limit for the root
//! group and is not supported.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};

/// Bytes per second that a disk takes and gives; [`None`] is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// For writes.
    pub write: Option<u64>,
    /// For reads.
    pub read: Option<u64>,
}

/// The cap group of one device; dropping it lifts all limits.
#[derive(Debug)]
pub(super) struct Throttle {
    root: PathBuf,
    group: PathBuf,
    /// The device as the controller names it, `major:minor`.
    number: String,
    caps: Caps,
}

impl Throttle {
    pub(super) fn new(name: &str, device: &Path) -> Result<Self> {
        let root = controller()?;
        let number = fs::metadata(device).doing(|| format!("looking at {}", device.display()))?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let group = root.join(name);
        fs::create_dir(&group).doing(|| format!("creating {}", group.display()))?;
        let throttle = Self { root, group, number: format!("{major}:{minor}"), caps: Caps::default() };
        // A killed run may have left its limits to this device number.
        throttle.write_all()?;
        Ok(throttle)
    }

    pub(super) fn caps(&self) -> Caps {
        self.caps
    }

    pub(super) fn set(&mut self, caps: Caps) -> Result<()> {
        self.caps = caps;
        self.write_all()
    }

    fn write_all(&self) -> Result<()> {
        for (direction, cap) in [("write", self.caps.write), ("read", self.caps.read)] {
            for group in [&self.group, &self.root] {
                let path = group.join(format!("blkio.throttle.{direction}_bps_device"));
                let line = format!("{} {}", self.number, cap.unwrap_or(0));
                fs::write(&path, &line).doing(|| format!("writing {line} to {}", path.display()))?;
            }
        }
        Ok(())
    }

    pub(super) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.group.join("cgroup.procs"))
            .arg(program);
        command
    }

    pub(super) fn admit(&self, pid: u32) -> Result<()> {
        let path = self.group.join("cgroup.procs");
        fs::write(&path, pid.to_string()).doing(|| format!("moving process {pid} to {}", path.display()))
    }

    /// A group with processes cannot be removed: they go back to the root.
    fn empty(&self) -> std::io::Result<()> {
        let members = fs::read_to_string(self.group.join("cgroup.procs"))?;
        for pid in members.lines() {
            // It may have ended meanwhile.
            let _ = fs::write(self.root.join("cgroup.procs"), pid);
        }
        fs::remove_dir(&self.group)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Nothing is left to do about a limit that does not go.
        let _ = self.set(Caps::default());
        let end = Instant::now() + Duration::from_secs(1);
        while self.empty().is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Folder of the blkio controller's root group.
fn controller() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").doing(|| "reading the mounts".into())?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let blkio = kind == "cgroup" && options.split(',').any(|option| option == "blkio");
            blkio.then(|| PathBuf::from(folder))
        })
        .next()
        .ok_or_else(|| Error::Missing {
            what: "the blkio controller of cgroup v1".into(),
            cure: "run `mkdir -p /run/blkio && mount -t cgroup -o blkio none /run/blkio`".into(),
        })
}
