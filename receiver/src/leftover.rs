//! Part files of earlier attempts: which one is ours, and which must stay.
//!
//! A name that ends like a part file's proves nothing: it may be a link to somebody's image, the
//! source itself, or a file that another user holds open to change the copy later. So a left-over
//! is taken for ours only when it carries our mark, its ledger knows it, or it holds no data at all,
//! and nobody else has it. Whether it is gone on with or removed is for `resume` to say.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use blockio::{Identity, Image};
use proto::control::Failure;
use proto::manifest::{ImageEntry, Storage};
use rustix::fs::{
    self, AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags, XattrFlags,
};
use rustix::io::Errno;

use crate::ledger::{self, Ledger, LedgerError, Seal, Shelf};
use crate::target::{Target, fd};

/// What a part file's name ends in.
pub(crate) const SUFFIX: &str = ".vmferry-part";
/// The attribute that a part file carries until it is complete. `cp` does not copy it.
pub(crate) const MARK: &str = "user.vmferry.part";

/// The attribute that asks for a part file which another job holds.
const KNOCK: &str = "user.vmferry.wanted";
/// How long the receiver of an attempt before this one may take to notice that its sender is gone.
const LETTING_GO: Duration = Duration::from_secs(10);

/// The name of a target's part file.
pub(crate) fn part_name(target: &Target) -> String {
    format!("{}{SUFFIX}", target.name)
}

/// Marks a new part file, as no other is; `None`: a file system without attributes. There a left-over
/// is recognised by its ledger alone, and one without has to be removed by hand.
pub(crate) fn mark(image: &Image) -> Option<[u8; 16]> {
    let mark = lanes::identity::random().ok()?;
    fs::fsetxattr(image.file(), MARK, &mark, XattrFlags::empty()).ok().map(|()| mark)
}

/// What a part file's mark says, if it has one.
fn mark_of(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut mark = [0; 16];
    fs::fgetxattr(file, MARK, &mut mark).ok().map(|len| mark[..len].to_vec())
}

/// What tells a part file from others.
///
/// # Errors
/// What statx(2) says.
pub(crate) fn copy_of(file: BorrowedFd<'_>, mark: Option<[u8; 16]>) -> Result<ledger::Copy, Errno> {
    let found = fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
    let born = (found.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| {
        found.stx_btime.tv_sec.saturating_mul(1_000_000_000).saturating_add(found.stx_btime.tv_nsec.into())
    });
    Ok(ledger::Copy::File { ino: found.stx_ino, born_ns: born, mark })
}

/// How sure it is that an image is the copy that a ledger is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Likeness {
    /// It is another one.
    Another,
    /// Nothing speaks against it: its inode number may be another file's by now.
    Maybe,
    /// It is.
    Same,
}

/// Compares a file with what a ledger says of its copy.
pub(crate) fn likeness(file: BorrowedFd<'_>, copy: &ledger::Copy) -> Likeness {
    let Ok(ledger::Copy::File { ino, born_ns, .. }) = copy_of(file, None) else { return Likeness::Another };
    let ledger::Copy::File { ino: then, born_ns: born_then, mark } = copy else { return Likeness::Another };
    let marks = mark.map(|mark| mark_of(file).as_deref() == Some(&mark[..]));
    let births = born_ns.zip(*born_then).map(|(now, then)| now == then);
    match (ino == *then, marks, births) {
        (false, ..) | (_, Some(false), _) | (_, _, Some(false)) => Likeness::Another,
        (true, None, None) => Likeness::Maybe,
        (true, ..) => Likeness::Same,
    }
}

/// Takes the mark off a file that is complete.
pub(crate) fn unmark(file: BorrowedFd<'_>) {
    let _ = fs::fremovexattr(file, KNOCK);
    let _ = fs::fremovexattr(file, MARK);
}

/// Keeps other jobs away from a part file, as long as it is open. One that has lost its sender is asked
/// for it, and waited for: it makes durable what it has, and lets go.
///
/// # Errors
/// Another job has it.
pub(crate) fn lock(image: &Image) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        match fs::flock(image.file(), FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if began.elapsed() < LETTING_GO => {
                // A file system without attributes: then only its own patience ends it.
                let _ = fs::fsetxattr(image.file(), KNOCK, b"1", XattrFlags::empty());
                std::thread::sleep(LETTING_GO / 200);
            }
            Err(Errno::WOULDBLOCK) => {
                let shown = image.path().display();
                let why = "is being written by another vmferry job: wait for it or end it";
                return Err(Failure::new(3, format!("{shown} {why}")));
            }
            // No locks on this file system: the name alone must do.
            _ => {
                let _ = fs::fremovexattr(image.file(), KNOCK);
                return Ok(());
            }
        }
    }
}

/// Whether another job has asked for a part file that this one holds.
pub(crate) fn is_wanted(image: &Image) -> bool {
    fs::fgetxattr(image.file(), KNOCK, &mut [0u8; 8]).is_ok()
}

/// Whether a file is one of the job's sources. The device is not compared: two hosts that share a
/// file system give it different numbers, but time of change and inode are the same on both.
pub(crate) fn is_source(stat: &Stat, images: &[ImageEntry]) -> bool {
    let nanos = |seconds: i64, rest: u64| seconds.saturating_mul(1_000_000_000).saturating_add(rest as i64);
    images.iter().any(|image| {
        let source = &image.identity;
        (stat.st_ino, stat.st_size as u64) == (source.ino, image.size)
            && nanos(stat.st_mtime, stat.st_mtime_nsec) == source.mtime_ns
            && nanos(stat.st_ctime, stat.st_ctime_nsec) == source.ctime_ns
    })
}

/// Whether a claimed device is the job's source: [`is_source`] for a device, whose node has no size.
pub(crate) fn is_source_device(device: &Identity, image: &ImageEntry) -> bool {
    let source = &image.identity;
    image.sector.is_some()
        && (device.ino, device.size, device.mtime_ns) == (source.ino, image.size, source.mtime_ns)
}

/// Whether writing this image would write one of the job's sources: on one host, a disk has many
/// names.
pub(crate) fn is_on_a_source<'a>(image: &Image, images: &'a [ImageEntry]) -> Option<&'a ImageEntry> {
    let storage = image.storage();
    let ours = Storage::new(&storage.is, &storage.on);
    images.iter().find(|source| source.storage.overlaps(&ours))
}

/// An unfinished copy of this user's that nobody uses, locked.
#[derive(Debug)]
pub(crate) struct Leftover {
    /// Open to be written.
    pub(crate) image: Image,
    /// Its ledger, if it can be used.
    pub(crate) ledger: Result<Option<Ledger>, LedgerError>,
}

/// Where the ledger of a target's copy lies.
pub(crate) fn shelf(target: &Target) -> Shelf<'_> {
    Shelf { folder: fd(target), shown: &target.folder_path, name: ledger::name_of(OsStr::new(&target.name)) }
}

/// Why what stands where a part file would be is left as it is.
#[derive(Debug)]
pub(crate) enum Stays {
    /// Another job has it.
    Busy(Failure),
    /// It is none of ours, or somebody uses it: the rest of a sentence about it.
    Foreign(String),
}

/// How to be rid of a target's unfinished copy, for messages.
pub(crate) fn drop_command(target: &Target) -> String {
    let path = target.path();
    let path = path.to_string_lossy();
    format!("vmferry drop {}", shlex::try_quote(&path).unwrap_or_else(|_| path.clone()))
}

/// Looks at what stands where the part file will be made.
///
/// # Errors
/// A sentence, exit code 3, for everything that is not a left-over of ours that nobody uses.
pub(crate) fn find(
    target: &Target,
    images: &[ImageEntry],
    direct: bool,
) -> Result<Option<Leftover>, Failure> {
    look(target, images, direct).map_err(|stays| match stays {
        Stays::Busy(failure) => failure,
        Stays::Foreign(what) => {
            let shown = target.folder_path.join(part_name(target));
            let next = "move it away, or give the destination another name";
            Failure::new(3, format!("{}, where the copy would grow, {what}: {next}", shown.display()))
        }
    })
}

/// The same for whoever says it in other words.
///
/// # Errors
/// Why it stays.
pub(crate) fn look(target: &Target, images: &[ImageEntry], direct: bool) -> Result<Option<Leftover>, Stays> {
    let name = part_name(target);
    let path = target.folder_path.join(&name);
    let refuse = |what: &str| Err(Stays::Foreign(what.into()));
    let stat = match fs::statat(fd(target), &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return refuse(&format!("cannot be looked at ({e})")),
        Ok(stat) => stat,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("is not a regular file");
    }
    if is_source(&stat, images) {
        return refuse("is the source itself");
    }
    let image = match Image::open_at(fd(target), OsStr::new(&name), &path, direct) {
        Ok(image) => image,
        Err(e) => return refuse(&format!("belongs to somebody else ({})", e.io())),
    };
    lock(&image).map_err(Stays::Busy)?;
    // Whoever had it before may have given it its name.
    let now = fs::statat(fd(target), &name, AtFlags::SYMLINK_NOFOLLOW).map(|s| (s.st_dev, s.st_ino));
    if now != Ok((stat.st_dev, stat.st_ino)) {
        return look(target, images, direct);
    }
    let ledger = Ledger::open(&shelf(target));
    if !is_ours(image.file(), &stat, &ledger) {
        return refuse("exists and is not an unfinished copy of this user's");
    }
    match image.users() {
        Ok(users) if users.is_empty() => {}
        Ok(users) => return refuse(&format!("is in use by {}", users.join(", "))),
        Err(e) => return refuse(&format!("cannot be looked at ({})", e.io())),
    }
    Ok(Some(Leftover { image, ledger }))
}

/// Waits until nobody holds the lock of the file at a target: the receiver of an attempt that has just
/// lost its sender may have given it its name, and not have noted that yet.
fn let_go(target: &Target) {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let regular = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !fs::statat(fd(target), target.name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(regular) {
        return;
    }
    let Ok(copy) = fs::openat(fd(target), target.name.as_str(), flags, Mode::empty()) else { return };
    let began = Instant::now();
    while fs::flock(&copy, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        && began.elapsed() < LETTING_GO
    {
        std::thread::sleep(LETTING_GO / 200);
    }
}

/// Whether a file that has a part file's name is an unfinished copy of this user's alone.
pub(crate) fn is_ours(
    file: BorrowedFd<'_>,
    stat: &Stat,
    ledger: &Result<Option<Ledger>, LedgerError>,
) -> bool {
    let known = matches!(ledger, Ok(Some(l)) if likeness(file, &l.head().copy) != Likeness::Another);
    // A receiver that was killed before it could mark its file. Both are asked: a file system may
    // lie about holes.
    let holds_nothing = || stat.st_blocks == 0 && fs::seek(file, SeekFrom::Data(0)) == Err(Errno::NXIO);
    stat.st_nlink == 1
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && (known || mark_of(file).is_some() || holds_nothing())
}

/// Whether what stands at a target is the complete copy of this very image, made by an attempt that
/// was interrupted later, and has not changed since. Its ledger and tree digest.
pub(crate) fn complete(target: &Target, entry: &ImageEntry) -> Option<(Ledger, [u8; 32])> {
    let_go(target);
    let ledger = Ledger::open(&shelf(target)).ok()??;
    let seal = standing(target, &ledger)?;
    ledger.head().is_of(entry).then_some((ledger, seal.tree))
}

/// The seal of a ledger, if what stands at the target is what it was put on, unchanged since.
pub(crate) fn standing(target: &Target, ledger: &Ledger) -> Option<Seal> {
    let seal = ledger.sealed().ok()??;
    let head = ledger.head();
    let stat = fs::statat(fd(target), target.name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let ledger::Copy::File { ino, .. } = head.copy else { return None };
    let copy = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && (stat.st_ino, stat.st_size as u64) == (ino, head.size)
        && stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64)
            == seal.mtime_ns;
    copy.then_some(seal)
}

/// Removes what [`find`] found, and its ledger.
///
/// # Errors
/// A sentence, exit code 3.
pub(crate) fn clear(target: &Target) -> Result<(), Failure> {
    let name = part_name(target);
    shelf(target).clear();
    fs::unlinkat(fd(target), &name, AtFlags::empty()).map_err(|e| {
        let shown = target.folder_path.join(&name);
        let why = "is left from an earlier attempt and cannot be removed";
        Failure::new(
            3,
            format!("{} {why} ({e}): remove it, or give the destination another name", shown.display()),
        )
    })
}
