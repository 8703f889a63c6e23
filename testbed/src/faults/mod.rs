//! A file system that passes everything on to a folder, and lies when told to.
//!
//! It is served by threads of this process and mounted by root through
//! `/dev/fuse` itself, so no libfuse or `fusermount3` is needed. Files are
//! opened for direct I/O inside FUSE: each read and write of a program arrives
//! here as it was made (cut at 1 MiB by the kernel), nothing is cached, and
//! shared writable mappings do not work.
//!
//! [`FaultFs::mount_volatile`] is a disk that also loses what was not synced when
//! [`FaultFs::power_loss`] says so: each 4 KiB block, each size and each change of
//! a name may survive or not.
//!
//! Non-goals: extended attributes, access control, speed.

mod backing;
mod lies;
mod passthrough;
mod power;
mod tree;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::mount::{UnmountFlags, unmount};

use crate::error::{Doing, Error, Result};
use crate::run::need_root;
use backing::Passthrough;

/// What happens to a program that uses O_DIRECT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// It works, whatever the alignment.
    #[default]
    Works,
    /// `open` fails with EINVAL.
    RefusedAtOpen,
    /// `open` works, every write fails with EINVAL.
    RefusedAtWrite,
    /// `open` works, every read fails with EINVAL.
    RefusedAtRead,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallocate {
    /// All modes that the folder's file system and FUSE know.
    #[default]
    Works,
    /// ZERO_RANGE fails with EOPNOTSUPP, as on tmpfs.
    NoZeroRange,
    /// Every mode fails with EOPNOTSUPP.
    Unsupported,
    /// Every mode fails with ENOSPC.
    NoSpace,
    /// Every mode succeeds and does nothing.
    Ignored,
}

/// The lies; the default tells none. Ranges are bytes in any file.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// What happens to a program that uses O_DIRECT.
    pub direct: DirectIo,
    /// What `fallocate` does.
    pub fallocate: Fallocate,
    /// SEEK_DATA fails with ENXIO and SEEK_HOLE finds a hole at once: a file
    /// full of data looks empty.
    pub no_data: bool,
    /// So many `fsync` and `fdatasync` calls fail with EIO, later ones succeed.
    pub failing_fsyncs: u32,
    /// So many `fsync` calls on folders fail with EIO, later ones succeed.
    pub failing_folder_fsyncs: u32,
    /// Every `fsync` and `fdatasync`, of files and folders, takes so long.
    pub slow_fsyncs: Duration,
    /// Every write that does not fail takes so long.
    pub slow_writes: Duration,
    /// Bytes that may still be written before ENOSPC; the write that crosses
    /// the limit is short.
    pub space: Option<u64>,
    /// Most bytes that one read returns.
    pub short_reads: Option<u32>,
    /// Most bytes that one write takes.
    pub short_writes: Option<u32>,
    /// A read that touches these bytes fails with EIO.
    pub read_error: Option<Range<u64>>,
    /// A write that touches these bytes fails with EIO.
    pub write_error: Option<Range<u64>>,
    /// A read that touches these bytes gets no answer until the faults are
    /// changed or the file system goes; then it fails with EIO.
    pub stalled_reads: Option<Range<u64>>,
    /// The byte at this offset is stored with all bits turned over, and success
    /// is reported.
    pub corrupt_writes_at: Option<u64>,
}

/// How often the file system was called, since it was mounted or last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files opened or created.
    pub opens: u64,
    /// Of these, with O_DIRECT, refused ones included.
    pub direct_opens: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Of these, through a file opened with O_DIRECT.
    pub direct_writes: u64,
    /// Bytes that writes took.
    pub written_bytes: u64,
    /// `fsync` and `fdatasync` calls on files.
    pub fsyncs: u64,
    /// `fsync` calls on folders.
    pub folder_fsyncs: u64,
    /// `fallocate` calls.
    pub fallocates: u64,
    /// SEEK_DATA and SEEK_HOLE calls.
    pub seeks: u64,
}

/// What the serving threads and the handle share.
#[derive(Debug, Default)]
struct State {
    faults: Faults,
    counts: Counts,
    stalled: Vec<fuser::ReplyData>,
}

/// State behind a lock, shared by the handle and the serving threads.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// A panic elsewhere leaves counters and switches, which are always whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mounted file system; dropping it unmounts it.
#[derive(Debug)]
pub struct FaultFs {
    shared: Shared,
    disk: Passthrough,
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
}

impl FaultFs {
    /// Shows the folder `backing` at the folder `mountpoint`.
    ///
    /// # Errors
    /// When this process is not root, the kernel has no FUSE or one of the
    /// folders does not exist.
    pub fn mount(backing: &Path, mountpoint: &Path, faults: Faults) -> Result<Self> {
        Self::start(backing, mountpoint, faults, false)
    }

    /// The same on a disk that can lose power. An `fsync` keeps data there, and
    /// does not wait for the disk under it.
    ///
    /// # Errors
    /// As [`FaultFs::mount`].
    pub fn mount_volatile(backing: &Path, mountpoint: &Path, faults: Faults) -> Result<Self> {
        Self::start(backing, mountpoint, faults, true)
    }

    fn start(backing: &Path, mountpoint: &Path, faults: Faults, loses_power: bool) -> Result<Self> {
        need_root()?;
        if !Path::new("/dev/fuse").exists() {
            return Err(Error::Missing { what: "/dev/fuse".into(), cure: "run `modprobe fuse`".into() });
        }
        let shared = Shared::default();
        shared.lock().faults = faults;
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("vmferry-testbed".into()), MountOption::DefaultPermissions];
        config.acl = SessionACL::All;
        config.n_threads = Some(4);
        let mounting = || format!("mounting a FUSE file system on {}", mountpoint.display());
        let disk = Passthrough::new(backing, shared.clone(), loses_power).doing(mounting)?;
        let session = fuser::spawn_mount(disk.clone(), mountpoint, &config).doing(mounting)?;
        Ok(Self { shared, disk, mountpoint: mountpoint.to_owned(), session: Some(session) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Replaces the faults, from the next call on; stalled reads are answered.
    pub fn set(&self, faults: Faults) {
        let mut state = self.shared.lock();
        state.faults = faults;
        let stalled = std::mem::take(&mut state.stalled);
        drop(state);
        for reply in stalled {
            reply.error(fuser::Errno::EIO);
        }
    }

    /// Cuts the power: of what was not synced some is lost, as `seed` chooses. Files
    /// that are open fail with EBADF from now on; whoever writes should be gone.
    ///
    /// # Errors
    /// When the disk cannot lose power, or its folder refuses.
    pub fn power_loss(&self, seed: u64) -> Result<()> {
        let Some(mut cache) = self.disk.cache() else {
            return Err(Error::Invalid("this file system keeps everything: use mount_volatile".into()));
        };
        let lost = cache.power_loss(seed, &mut self.disk.tree());
        lost.doing(|| format!("losing the power of {}", self.mountpoint.display()))
    }

    /// The faults as they are now; those that count down have counted down.
    pub fn faults(&self) -> Faults {
        self.shared.lock().faults.clone()
    }

    /// Calls so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Number of reads that wait for an answer.
    pub fn stalled(&self) -> usize {
        self.shared.lock().stalled.len()
    }

    /// Starts counting anew.
    pub fn reset_counts(&self) {
        self.shared.lock().counts = Counts::default();
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        self.set(Faults::default());
        let Some(session) = self.session.take() else { return };
        // Detached, not refused, when a program still has a file open; the
        // threads then serve it until it closes the file.
        let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
        let end = Instant::now() + Duration::from_secs(2);
        while !session.guard.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
