//! Copies that begin with an older one: a clone of it, a new file beside it, or it itself.

use std::ffi::OsStr;

use blockio::Image;
use proto::control::{Delta, Failure};
use proto::manifest::ImageEntry;
use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;

use crate::ledger::{Head, Ledger, Origin};
use crate::leftover::{self, Leftover, Likeness};
use crate::resume::Begin;
use crate::target::{self, Target, fd, hint, refuse};

/// How such a copy begins.
#[derive(Debug)]
pub(crate) struct Older {
    /// What is written.
    pub(crate) image: Image,
    /// The older copy, where it is another file.
    pub(crate) beside: Option<Image>,
    /// Bytes of the older copy.
    pub(crate) size: u64,
    /// Says that the copy is not complete.
    pub(crate) ledger: Option<Ledger>,
    /// It is the older copy itself, which has another name until it is complete.
    pub(crate) in_place: bool,
    /// An earlier attempt may have changed it.
    pub(crate) touched: bool,
    pub(crate) mark: Option<[u8; 16]>,
    pub(crate) notice: Option<String>,
}

/// How the copy of one image begins when there may be an older one. Waits for the disk.
///
/// # Errors
/// A sentence, exit code 3.
pub(crate) fn or_new(
    target: &Target,
    entry: &ImageEntry,
    found: Option<Leftover>,
    old: Option<Image>,
    how: Delta,
    direct: bool,
) -> Result<Begin, Failure> {
    let mut notice = None;
    if let Some(found) = found {
        if let Some(older) = again(target, entry, found)? {
            if older.in_place && old.is_some() {
                return refuse(format!(
                    "{} is there, and so is {} whose update in place was interrupted: move one of them away, or give up the latter with '{} --force' on the destination",
                    target.path().display(),
                    older.image.path().display(),
                    leftover::drop_command(target)
                ));
            }
            return Ok(Begin::Delta(older));
        }
        leftover::clear(target)?;
        notice =
            Some(format!("an unfinished copy of {} was started over as a delta", target.path().display()));
    } else {
        leftover::shelf(target).clear();
    }
    match old {
        Some(old) => Ok(Begin::Delta(Older { notice, ..begin(target, entry, old, how, direct)? })),
        None => {
            let path = target.path();
            let none = || format!("there is no older copy at {}: all of it is sent", path.display());
            Ok(Begin::Fresh(Some(notice.unwrap_or_else(none))))
        }
    }
}

/// Goes on with a delta that was interrupted.
fn again(target: &Target, entry: &ImageEntry, found: Leftover) -> Result<Option<Older>, Failure> {
    let Leftover { image, ledger: Ok(Some(ledger)) } = found else { return Ok(None) };
    let in_place = match ledger.head().origin {
        Origin::Nothing => return Ok(None),
        Origin::Clone => false,
        Origin::InPlace => true,
    };
    if leftover::likeness(image.file(), &ledger.head().copy) == Likeness::Another {
        return Ok(None);
    }
    let size = image.size();
    grow(&image, entry)?;
    let path = target.path();
    let notice = Some(format!("an interrupted delta of {} is gone on with", path.display()));
    Ok(Some(Older {
        image,
        beside: None,
        size: size.min(entry.size),
        ledger: Some(ledger),
        in_place,
        touched: true,
        mark: None,
        notice,
    }))
}

/// Begins one with the older copy `old`.
fn begin(
    target: &Target,
    entry: &ImageEntry,
    old: Image,
    how: Delta,
    direct: bool,
) -> Result<Older, Failure> {
    let size = old.size();
    if size > entry.size {
        return refuse(format!(
            "{} on the destination has {size} bytes, {} has {} now: an image that shrank is sent as a whole (--force without --delta)",
            target.path().display(),
            entry.name,
            entry.size
        ));
    }
    match how {
        Delta::InPlace => in_place(target, entry, old, size),
        Delta::Aside | Delta::No => aside(target, entry, old, size, direct),
    }
}

/// The older copy itself, by the name of an unfinished one: nobody takes it for a good one meanwhile.
/// The ledger comes first, so that at no moment it lies there without one.
fn in_place(target: &Target, entry: &ImageEntry, old: Image, size: u64) -> Result<Older, Failure> {
    let path = target.path();
    let failed = |e: &dyn std::fmt::Display| {
        Failure::new(3, format!("cannot change {} in place: {e}", path.display()))
    };
    let names = fs::fstat(old.file()).map_err(|e| failed(&e))?.st_nlink;
    if names != 1 {
        return Err(failed(&"it has other names (hard links), whose content would change with it"));
    }
    leftover::lock(&old)?;
    let mark = leftover::mark(&old);
    let copy = leftover::copy_of(old.file(), mark).map_err(|e| failed(&e))?;
    let head = Head::new(entry, copy, Origin::InPlace).map_err(|e| failed(&e))?;
    let ledger = Ledger::create(&leftover::shelf(target), head).map_err(|e| failed(&e))?;
    let undo = |e: Errno| {
        leftover::unmark(old.file());
        leftover::shelf(target).clear();
        failed(&e)
    };
    let part = leftover::part_name(target);
    fs::renameat_with(fd(target), target.name.as_str(), fd(target), &part, fs::RenameFlags::NOREPLACE)
        .or_else(|e| match e {
            Errno::INVAL | Errno::NOSYS => fs::renameat(fd(target), target.name.as_str(), fd(target), &part),
            e => Err(e),
        })
        .map_err(undo)?;
    fs::fsync(fd(target)).map_err(|e| failed(&e))?;
    grow(&old, entry)?;
    Ok(Older {
        image: old,
        beside: None,
        size,
        ledger: Some(ledger),
        in_place: true,
        touched: false,
        mark,
        notice: None,
    })
}

/// A clone where the file system has them, else a new file that what is kept is copied to.
fn aside(target: &Target, entry: &ImageEntry, old: Image, size: u64, direct: bool) -> Result<Older, Failure> {
    let name = leftover::part_name(target);
    let shown = target.folder_path.join(&name);
    let refused = |e: blockio::Error| Failure::new(3, format!("{e}{}", hint(e.kind())));
    let image =
        Image::create_at(fd(target), OsStr::new(&name), &shown, entry.size, direct).map_err(refused)?;
    let mark = leftover::mark(&image);
    leftover::lock(&image)?;
    let made = || -> Result<(bool, Option<Ledger>), Failure> {
        match fs::ioctl_ficlone(image.file(), old.file()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                let folder = &target.folder;
                target::room(folder, &target.folder_path, std::slice::from_ref(entry), 0, false).map_err(
                    |f| {
                        let why =
                            "this file system has no clones (btrfs and xfs do): --inplace needs no room";
                        Failure::new(f.exit, format!("{}; {why}", f.reason))
                    },
                )?;
                return Ok((false, None));
            }
            Err(e) => return Err(Failure::new(3, format!("cannot clone {}: {e}", target.path().display()))),
        }
        // A clone has the size of what it was made from.
        image.set_len(entry.size).map_err(refused)?;
        let broke = |e: &dyn std::fmt::Display| Failure::new(3, format!("{}: {e}", shown.display()));
        let copy = leftover::copy_of(image.file(), mark).map_err(|e| broke(&e))?;
        let head = Head::new(entry, copy, Origin::Clone).map_err(|e| broke(&e))?;
        Ok((true, Some(Ledger::create(&leftover::shelf(target), head).map_err(|e| broke(&e))?)))
    };
    match made() {
        Ok((cloned, ledger)) => {
            let beside = (!cloned).then_some(old);
            Ok(Older { image, beside, size, ledger, in_place: false, touched: false, mark, notice: None })
        }
        Err(failure) => {
            leftover::clear(target)?;
            Err(failure)
        }
    }
}

fn grow(image: &Image, entry: &ImageEntry) -> Result<(), Failure> {
    if image.size() < entry.size {
        image.set_len(entry.size).map_err(|e| Failure::new(3, e.to_string()))?;
    }
    Ok(())
}

/// The older copy of `size` bytes gets its name back: nothing of it was changed. As far as possible.
pub(crate) fn give_back(target: &Target, image: &Image, size: u64) {
    if image.size() != size && image.set_len(size).is_err() {
        return;
    }
    let part = leftover::part_name(target);
    leftover::unmark(image.file());
    let back =
        fs::renameat_with(fd(target), &part, fd(target), target.name.as_str(), fs::RenameFlags::NOREPLACE);
    if back.is_ok() && fs::fsync(fd(target)).is_ok() {
        leftover::shelf(target).clear();
    } else {
        // It is still what its ledger says.
        let _ = fs::fsetxattr(image.file(), leftover::MARK, b"1", XattrFlags::empty());
    }
}
