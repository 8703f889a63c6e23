//! What interrupted jobs left in a folder: which copies, how far each is, and how to be rid of one.
//!
//! Goals: looking changes nothing; only what is provably an unfinished copy of this user's that
//! nobody has is removed, by the same proof as when a job takes one over (`leftover`). Non-goals:
//! whether a job would go on with a copy, which its source decides too (`resume`); block devices.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::control::Failure;
use proto::geometry::GRANULE;
use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::ledger::{self, Ledger, LedgerError, Origin};
use crate::leftover::{self, Likeness};
use crate::owner::Wanted;
use crate::state::State;
use crate::target::Target;

mod place;

pub use place::{Dropped, Place};

/// Bytes of a block of st_blocks.
const STAT_BLOCK: u64 = 512;
/// While a job notes something, or gives a copy its name, neither may look like itself: what looks
/// odd is looked at so often, with so much time in between.
const LOOKS: usize = 3;
const MOMENT: Duration = Duration::from_millis(50);

/// What a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A new file that grows.
    New,
    /// A new file that began as a clone of the older copy.
    Clone,
    /// The older copy itself, changed in part: there is no other.
    InPlace,
    /// A complete image, of which a ledger still says so to the job that it was part of.
    Complete,
    /// A ledger alone.
    Orphan,
    /// An unfinished copy of this user's whose ledger cannot be used.
    Damaged,
    /// Only the name is that of an unfinished copy.
    Foreign,
}

impl Kind {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::New => "new",
            Kind::Clone => "clone",
            Kind::InPlace => "in-place",
            Kind::Complete => "complete",
            Kind::Orphan => "orphan",
            Kind::Damaged => "damaged",
            Kind::Foreign => "foreign",
        }
    }
}

impl From<Origin> for Kind {
    fn from(origin: Origin) -> Kind {
        match origin {
            Origin::Nothing => Kind::New,
            Origin::Clone => Kind::Clone,
            Origin::InPlace => Kind::InPlace,
        }
    }
}

/// One unfinished copy, or what looks like one.
#[derive(Debug)]
pub struct Unfinished {
    /// The image's path, which it has or will have.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Why, where the kind needs a reason.
    pub reason: Option<String>,
    /// A job has it right now.
    pub running: bool,
    /// Size of the image, bytes.
    pub size: Option<u64>,
    /// How much of it is durable, bytes; `None`: nobody knows.
    pub durable: Option<u64>,
    /// What dropping it would free, bytes: the part file, not a complete image, and the ledger.
    pub disk: u64,
    /// When it was begun, seconds since 1970.
    pub begun: Option<u64>,
    /// When it last changed, seconds since 1970.
    pub changed: Option<u64>,
    /// The source's name.
    pub source: Option<String>,
}

/// What there is in a folder, by name.
///
/// # Errors
/// A sentence, exit code 3: the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Unfinished>, Failure> {
    let (fd, path) = open_folder(folder)?;
    let unreadable = |e: Errno| unreadable(folder, e);
    let mut names = BTreeSet::new();
    for entry in fs::Dir::read_from(&fd).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        names.extend(image_of(OsStr::from_bytes(entry.file_name().to_bytes())));
    }
    Ok(names.into_iter().filter_map(|name| Unfinished::settled(&fd, &path, &name)).collect())
}

/// Of the name of a part file or ledger, the image's.
fn image_of(name: &OsStr) -> Option<OsString> {
    let ends = [leftover::SUFFIX, ledger::SUFFIX, ledger::UNNAMED];
    let image = ends.iter().find_map(|end| name.as_bytes().strip_suffix(end.as_bytes()))?;
    (!image.is_empty()).then(|| OsStr::from_bytes(image).to_owned())
}

fn open_folder(folder: &Path) -> Result<(Arc<OwnedFd>, PathBuf), Failure> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = fs::open(folder, flags, Mode::empty()).map_err(|e| unreadable(folder, e))?;
    Ok((Arc::new(fd), folder.canonicalize().unwrap_or_else(|_| folder.to_owned())))
}

fn unreadable(folder: &Path, e: Errno) -> Failure {
    let next = "give the folder that the copies grow in, as the user that receives them";
    Failure::new(3, format!("cannot read folder {}: {e}: {next}", folder.display()))
}

impl Unfinished {
    /// `None`: it went away meanwhile.
    fn settled(folder: &Arc<OwnedFd>, folder_path: &Path, name: &OsStr) -> Option<Unfinished> {
        let mut found = Unfinished::find(folder, folder_path, name)?;
        for _ in 1..LOOKS {
            if !matches!(found.kind, Kind::Damaged | Kind::Foreign) {
                break;
            }
            std::thread::sleep(MOMENT);
            found = Unfinished::find(folder, folder_path, name)?;
        }
        Some(found)
    }

    fn find(folder: &Arc<OwnedFd>, folder_path: &Path, name: &OsStr) -> Option<Unfinished> {
        let path = folder_path.join(name);
        let Some(name) = name.to_str() else {
            let reason = "its name is not UTF-8, as every copy's is";
            return Some(Unfinished::nothing(path).because(Kind::Foreign, reason));
        };
        let target = target(folder, folder_path, name.into());
        let shelf = leftover::shelf(&target);
        let (mut disk, mut changed) = (0, None);
        let mut foreign = None;
        for name in [&shelf.name, &shelf.unnamed()] {
            match sheet(&target, name) {
                Ok(stat) => count(stat.as_ref(), &mut disk, &mut changed),
                Err(why) => foreign = Some(format!("{} {why}", name.display())),
            }
        }
        let ledger = if foreign.is_none() { Ledger::read(&shelf) } else { Ok(None) };
        let found = Unfinished { disk, changed, ..Unfinished::nothing(path) };
        let part = leftover::part_name(&target);
        match fs::statat(&*target.folder, part.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(found.part(&target, &stat, ledger, foreign)),
            Err(Errno::NOENT) => match (foreign, ledger) {
                (Some(why), _) => Some(found.because(Kind::Foreign, &why)),
                (None, Ok(None)) if disk == 0 && changed.is_none() => None,
                (None, ledger) => Some(found.ledger(&target, ledger)),
            },
            Err(e) => Some(found.because(Kind::Foreign, &format!("{part} cannot be looked at ({e})"))),
        }
    }

    fn nothing(path: PathBuf) -> Unfinished {
        Unfinished {
            path,
            kind: Kind::Foreign,
            reason: None,
            running: false,
            size: None,
            durable: None,
            disk: 0,
            begun: None,
            changed: None,
            source: None,
        }
    }

    fn because(self, kind: Kind, reason: &str) -> Unfinished {
        Unfinished { kind, reason: Some(reason.into()), ..self }
    }

    /// There is a part file, and perhaps a ledger.
    fn part(
        mut self,
        target: &Target,
        stat: &Stat,
        ledger: Result<Option<Ledger>, LedgerError>,
        foreign: Option<String>,
    ) -> Unfinished {
        let name = leftover::part_name(target);
        let opened = is_private(stat).and_then(|()| {
            let file = look_at(target, name.as_ref()).map_err(|e| format!("cannot be opened ({e})"))?;
            let ours = leftover::is_ours(file.as_fd(), stat, &ledger);
            ours.then_some(file).ok_or_else(|| "is not an unfinished copy of this user's".into())
        });
        let file = match opened {
            Ok(file) => file,
            Err(why) => return self.because(Kind::Foreign, &format!("{name} {why}")),
        };
        count(Some(stat), &mut self.disk, &mut self.changed);
        self.running = is_locked(&file);
        self.size = Some(stat.st_size as u64);
        if let Some(why) = foreign {
            return self.because(Kind::Foreign, &why);
        }
        let ledger = match ledger {
            Ok(Some(ledger)) => ledger,
            Ok(None) => return Unfinished { kind: Kind::New, durable: Some(0), ..self },
            Err(e) => return self.because(Kind::Damaged, &unusable(&e)),
        };
        if leftover::likeness(file.as_fd(), &ledger.head().copy) == Likeness::Another {
            return self.because(Kind::Damaged, "its ledger is about another file");
        }
        self = self.told(&ledger);
        match durable_bytes(&ledger) {
            Ok(durable) => Unfinished { durable: Some(durable), ..self },
            // What cannot be counted on is still what it is.
            Err(_) if ledger.head().origin == Origin::InPlace => self,
            Err(e) => self.because(Kind::Damaged, &unusable(&e)),
        }
    }

    /// There is a ledger alone.
    fn ledger(mut self, target: &Target, ledger: Result<Option<Ledger>, LedgerError>) -> Unfinished {
        let image = look_at(target, target.name.as_ref()).ok();
        let ledger = match ledger {
            Ok(Some(ledger)) => ledger,
            Ok(None) => {
                return self.because(Kind::Orphan, "its ledger was never whole, and there is no copy");
            }
            Err(e) => {
                return self.because(Kind::Orphan, &format!("{}, and there is no copy", unusable(&e)));
            }
        };
        self = self.told(&ledger);
        let complete = leftover::standing(target, &ledger).is_some();
        let same = |file: &File| leftover::likeness(file.as_fd(), &ledger.head().copy) != Likeness::Another;
        self.running = image.as_ref().is_some_and(|image| (complete || same(image)) && is_locked(image));
        if complete {
            return Unfinished { kind: Kind::Complete, durable: self.size, ..self };
        }
        let untouched = ledger.head().origin == Origin::InPlace && image.is_some_and(|image| same(&image));
        let why = if untouched {
            "its change in place did not begin: the image is whole"
        } else {
            "there is a ledger, and its copy is gone"
        };
        self.because(Kind::Orphan, why)
    }

    fn told(self, ledger: &Ledger) -> Unfinished {
        let head = ledger.head();
        Unfinished {
            kind: head.origin.into(),
            size: Some(head.size),
            begun: Some(head.begun),
            source: Some(head.name.clone()),
            ..self
        }
    }
}

/// What is wrong with a ledger.
fn unusable(e: &LedgerError) -> String {
    match e {
        LedgerError::Damaged => e.to_string(),
        LedgerError::Io(e) => format!("its ledger cannot be read ({e})"),
    }
}

/// How much a ledger calls durable, bytes. A delta that began more than once may have noted a granule
/// twice.
fn durable_bytes(ledger: &Ledger) -> Result<u64, LedgerError> {
    let head = ledger.head();
    let byte = |granule: u64| granule.saturating_mul(u64::from(GRANULE)).min(head.size);
    let (mut at, mut end, mut bytes) = (0, 0, 0);
    while let Some((runs, next)) = ledger.runs(at)? {
        for run in runs.iter().map(proto::granules::Run::range) {
            if run.start < end && head.origin == Origin::Nothing {
                return Err(LedgerError::Damaged);
            }
            bytes += byte(run.end).saturating_sub(byte(run.start.max(end)));
            end = end.max(run.end);
        }
        at = next;
    }
    Ok(bytes)
}

/// Adds a file to what takes space and when it changed.
fn count(stat: Option<&Stat>, disk: &mut u64, changed: &mut Option<u64>) {
    if let Some(stat) = stat {
        *disk += stat.st_blocks as u64 * STAT_BLOCK;
        *changed = (*changed).max(u64::try_from(stat.st_mtime).ok());
    }
}

/// Opens a file to look at it.
fn look_at(target: &Target, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(&*target.folder, name, flags, Mode::empty())?;
    let regular = FileType::from_raw_mode(fs::fstat(&file)?.st_mode) == FileType::RegularFile;
    if regular { Ok(File::from(file)) } else { Err(Errno::INVAL) }
}

/// Whether a job has it. The lock is given back at once, and jobs that want it try for seconds.
fn is_locked(file: &File) -> bool {
    let held = fs::flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    if !held {
        let _ = fs::flock(file, FlockOperation::Unlock);
    }
    held
}

/// Whether a file is this user's, by this name alone.
///
/// # Errors
/// What it is instead: the rest of a sentence.
fn is_private(stat: &Stat) -> Result<(), String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Err("is not a regular file".into())
    } else if stat.st_uid != rustix::process::geteuid().as_raw() {
        Err(format!("belongs to another user ({})", stat.st_uid))
    } else if stat.st_nlink != 1 {
        Err("has other names (hard links)".into())
    } else {
        Ok(())
    }
}

/// A ledger of this user's, whole or not; `None`: nothing has the name.
///
/// # Errors
/// What it is instead: the rest of a sentence.
fn sheet(target: &Target, name: &OsStr) -> Result<Option<Stat>, String> {
    let stat = match fs::statat(&*target.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(format!("cannot be looked at ({e})")),
        Ok(stat) => stat,
    };
    is_private(&stat)?;
    let file = look_at(target, name).map_err(|e| format!("cannot be opened ({e})"))?;
    match ledger::begins_like_one(&file) {
        Ok(true) => Ok(Some(stat)),
        Ok(false) => Err("is not a ledger".into()),
        Err(e) => Err(format!("cannot be read ({e})")),
    }
}

fn target(folder: &Arc<OwnedFd>, folder_path: &Path, name: String) -> Target {
    let (folder, folder_path) = (folder.clone(), folder_path.to_owned());
    Target { folder, folder_path, name, replaces: false, owner: Wanted::default() }
}
/// Forgets an unfinished copy on a block device; what is on the device stays as it is.
///
/// # Errors
/// A sentence, exit code 3: there is nothing to forget.
pub fn forget_device(device: &Path) -> Result<(), Failure> {
    let state = State::open();
    let shelf = state.as_ref().map(|state| state.shelf(device));
    match shelf.map(|shelf| (Ledger::read(&shelf), shelf)) {
        Some((Ok(Some(_)) | Err(_), shelf)) => {
            shelf.clear();
            Ok(())
        }
        _ => Err(Failure::new(3, format!("no unfinished copy on {} is known here", device.display()))),
    }
}

/// Whether a path is a block device, whose copies [`forget_device`] forgets.
pub fn is_device(path: &Path) -> bool {
    crate::device::is_device(path)
}
