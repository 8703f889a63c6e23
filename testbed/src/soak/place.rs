//! The images of a job, the disk that they go to, and what must hold of both.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testbed::disk::{Fs, LoopDisk};
use testbed::faults::{FaultFs, Faults};
use testbed::images::{self, content::Numbers};

use super::Bench;
use super::plan::{Content, DiskKind, ImagePlan, Plan, SPARSE};
use crate::cli::Failure;

/// Bytes of a disk with a file system; the images fit, with one older copy of each.
const DISK: u64 = 700 << 20;

/// Images here, a disk there. Removed with the handle.
pub struct Place {
    pub disk: Disk,
    pub images: Vec<Source>,
    /// The vmferry of this job: processes are told from those of other jobs by this path.
    pub vmferry: PathBuf,
    // Goes last.
    folder: TempDir,
}

/// The destination.
pub enum Disk {
    Fuse { fs: FaultFs, volatile: bool },
    Loop(LoopDisk),
}

/// An image, and what is in it.
pub struct Source {
    pub path: PathBuf,
    b3: String,
}

impl Place {
    pub fn new(bench: &Bench, plan: &Plan, dice: &mut Numbers) -> Result<Place, Failure> {
        let folder = tempfile::Builder::new().prefix("vmferry-soak-").tempdir_in(&bench.place)?;
        let vmferry = folder.path().join("vmferry");
        std::os::unix::fs::symlink(&bench.vmferry, &vmferry)?;
        let make = |(number, image): (usize, &ImagePlan)| {
            Source::make(&folder.path().join(format!("disk{number}.img")), image, dice.any())
        };
        let images = plan.images.iter().enumerate().map(make).collect::<Result<_, _>>()?;
        let disk = Disk::new(folder.path(), plan.disk)?;
        Ok(Place { disk, images, vmferry, folder })
    }

    /// For the output of attempts.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the copies go.
    pub fn there(&self) -> Result<&Path, Failure> {
        self.disk.folder()
    }

    fn copy(&self, source: &Source) -> Result<PathBuf, Failure> {
        Ok(self.there()?.join(source.path.file_name().ok_or("an image without a name")?))
    }

    /// What is not as it must be. Of copies: `all` of them are there and equal, else those that are.
    pub fn differs(&self, all: bool) -> Result<Option<String>, Failure> {
        for source in &self.images {
            let copy = self.copy(source)?;
            if all || copy.exists() {
                match images::equal(&source.path, &copy) {
                    Ok(()) => {}
                    Err(difference) => return Ok(Some(said(&difference))),
                }
            }
            if images::b3(&source.path)? != source.b3 {
                return Ok(Some(format!("{} changed", source.path.display())));
            }
        }
        Ok(None)
    }

    /// Files at the destination that are no copies.
    pub fn strange_files(&self) -> Result<Vec<PathBuf>, Failure> {
        let copies = self.images.iter().map(|s| self.copy(s)).collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(self.there()?)? {
            let path = entry?.path();
            if !copies.contains(&path) && !path.ends_with("lost+found") {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Removes what attempts left, copies excepted.
    pub fn clear(&self) -> Result<(), Failure> {
        Ok(self.strange_files()?.iter().try_for_each(fs::remove_file)?)
    }

    /// Something writes a source between two attempts, unless it is in place already.
    pub fn touch(&mut self, dice: &mut Numbers) -> Result<bool, Failure> {
        let number = usize::try_from(dice.below(self.images.len() as u64))?;
        if self.copy(&self.images[number])?.exists() {
            return Ok(false);
        }
        let source = &mut self.images[number];
        let file = File::options().write(true).open(&source.path)?;
        let at = dice.below(file.metadata()?.len());
        // Never longer than it was.
        file.write_all_at(&dice.any().to_le_bytes()[..1], at)?;
        file.sync_all()?;
        source.b3 = images::b3(&source.path)?;
        Ok(true)
    }

    /// Damages a ledger, if there is one.
    pub fn damage_ledger(&self, dice: &mut Numbers) -> Result<bool, Failure> {
        let ledgers = self.strange_files()?;
        let Some(ledger) = ledgers.iter().find(|p| p.extension().is_some_and(|e| e == "vmferry-ledger"))
        else {
            return Ok(false);
        };
        let mut bytes = fs::read(ledger)?;
        let at = usize::try_from(dice.below(bytes.len() as u64))?;
        if dice.below(2) == 0 {
            bytes.truncate(at);
        } else if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << dice.below(8);
        }
        // As it is, not another file.
        let file = File::options().write(true).open(ledger)?;
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        Ok(true)
    }

    /// Processes of this job, on either host.
    pub fn processes(&self, receivers_only: bool) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next() == Some(self.vmferry.as_os_str().as_encoded_bytes())
                && (!receivers_only || words.next() == Some(b"receive"))
        })
        .collect()
    }
}

impl Disk {
    fn new(place: &Path, kind: DiskKind) -> Result<Disk, Failure> {
        if kind == DiskKind::Ext4 {
            return Ok(Disk::Loop(LoopDisk::new(place, DISK, Fs::Ext4, 512)?));
        }
        let (backing, mount) = (place.join("backing"), place.join("mount"));
        fs::create_dir(&backing)?;
        fs::create_dir(&mount)?;
        let volatile = kind == DiskKind::Volatile;
        let make = if volatile { FaultFs::mount_volatile } else { FaultFs::mount };
        Ok(Disk::Fuse { fs: make(&backing, &mount, Faults::default())?, volatile })
    }

    pub fn folder(&self) -> Result<&Path, Failure> {
        match self {
            Disk::Fuse { fs, .. } => Ok(fs.path()),
            Disk::Loop(disk) => Ok(disk.folder()?),
        }
    }

    /// Calls fail from now on; false where none can.
    pub fn set(&self, faults: Faults) -> bool {
        match self {
            Disk::Fuse { fs, .. } => {
                fs.set(faults);
                true
            }
            Disk::Loop(_) => false,
        }
    }

    /// Whether it has a power that can be cut.
    pub fn can_lose_power(&self) -> bool {
        !matches!(self, Disk::Fuse { volatile: false, .. })
    }

    /// Cuts the power; false where that cannot be. Nobody may be writing.
    pub fn power_loss(&mut self, seed: u64) -> Result<bool, Failure> {
        match self {
            Disk::Fuse { volatile: false, .. } => return Ok(false),
            Disk::Fuse { fs, .. } => fs.power_loss(seed)?,
            Disk::Loop(disk) => disk.power_loss()?,
        }
        Ok(true)
    }
}

impl Source {
    fn make(path: &Path, plan: &ImagePlan, seed: u64) -> Result<Source, Failure> {
        match plan.content {
            Content::Dense => images::random(path, plan.size, seed)?,
            Content::Sparse => images::sparse(path, plan.size, plan.size / SPARSE, seed).map(drop)?,
            Content::Hole => File::create(path)?.set_len(plan.size)?,
        }
        Ok(Source { path: path.to_owned(), b3: images::b3(path)? })
    }
}

/// An error with its causes.
pub fn said(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", said(cause)),
        None => error.to_string(),
    }
}
