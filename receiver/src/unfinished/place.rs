//! One unfinished copy, and how to be rid of it.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use proto::control::Failure;
use rustix::fs::{self, AtFlags, Stat};

use super::{Kind, STAT_BLOCK, image_of, is_locked, look_at, open_folder, sheet, target, unusable};
use crate::ledger::{self, Ledger};
use crate::leftover::{self, Leftover, Likeness, Stays};
use crate::target::{Target, refuse};

/// Where an unfinished copy is looked for.
#[derive(Debug)]
pub struct Place(Target);

/// What was dropped.
#[derive(Debug)]
pub struct Dropped {
    /// What it was.
    pub kind: Kind,
    /// What was freed, bytes; of a clone less, as far as it shares with the older copy.
    pub bytes: u64,
}

impl Place {
    /// What a path means: an image's final name, its part file, or its ledger.
    ///
    /// # Errors
    /// A sentence, exit code 3: no file can be meant, or the folder cannot be read.
    pub fn at(path: &Path) -> Result<Place, Failure> {
        let Some(name) = path.file_name() else {
            return refuse(format!("{} does not name a file", path.display()));
        };
        let name = image_of(name).unwrap_or_else(|| name.to_owned());
        let Ok(name) = name.into_string() else {
            return refuse(format!("{} is not valid UTF-8, as every copy's name is", path.display()));
        };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (fd, folder) = open_folder(folder)?;
        Ok(Place(target(&fd, &folder, name)))
    }

    /// The image's path, which it has or would have had.
    pub fn path(&self) -> PathBuf {
        self.0.path()
    }

    /// Removes the unfinished copy and its ledger; of a complete image the ledger alone. Waits
    /// some seconds for a job that is just ending. `force` also gives up an older copy that was
    /// changed in place.
    ///
    /// # Errors
    /// A sentence, exit code 3: nothing is there, or it is not for this user to remove.
    pub fn discard(&self, force: bool) -> Result<Dropped, Failure> {
        let found = leftover::look(&self.0, &[], false).map_err(|stays| match stays {
            Stays::Busy(failure) => failure,
            Stays::Foreign(what) => foreign(&self.shown(leftover::part_name(&self.0)), &what),
        })?;
        let shelf = leftover::shelf(&self.0);
        let mut sheets = Vec::new();
        for name in [shelf.name.clone(), shelf.unnamed()] {
            let found = sheet(&self.0, &name).map_err(|what| foreign(&self.shown(&name), &what))?;
            sheets.extend(found.map(|stat| (name, stat)));
        }
        let (kind, part) = match found {
            Some(found) => self.part(&found, force)?,
            None if sheets.is_empty() => {
                let (path, folder) = (self.path(), self.0.folder_path.display());
                return refuse(format!(
                    "there is no unfinished copy of {}: 'vmferry status {folder}' lists those that are",
                    path.display()
                ));
            }
            None => (self.ledger(&shelf)?, None),
        };
        // The ledger last: without one, not every file system can tell that the part file is ours.
        let mut bytes = 0;
        for (name, stat) in part.iter().chain(&sheets) {
            self.unlink(name, stat)?;
            bytes += stat.st_blocks as u64 * STAT_BLOCK;
        }
        let _ = fs::fsync(&*self.0.folder);
        Ok(Dropped { kind, bytes })
    }

    /// Whether a part file may go, which is locked.
    fn part(&self, found: &Leftover, force: bool) -> Result<(Kind, Option<(OsString, Stat)>), Failure> {
        let name = OsString::from(leftover::part_name(&self.0));
        let shown = self.shown(&name);
        let file = found.image.file();
        let kind = match &found.ledger {
            Ok(None) => Kind::New,
            Ok(Some(l)) if leftover::likeness(file, &l.head().copy) == Likeness::Another => Kind::Damaged,
            Ok(Some(ledger)) => ledger.head().origin.into(),
            Err(_) if force => Kind::Damaged,
            Err(e) => {
                return refuse(format!(
                    "{shown} may be an older copy that was changed in place, of which there is no other, since {}: --force drops it all the same",
                    unusable(e)
                ));
            }
        };
        if kind == Kind::InPlace && !force {
            return refuse(format!(
                "{shown} is the older copy itself, changed in part, and there is no other: 'vmferry send --delta' finishes it, and dropping it with --force loses both"
            ));
        }
        let stat = fs::fstat(file).map_err(|e| {
            Failure::new(3, format!("{shown} cannot be looked at ({e}): nothing was removed"))
        })?;
        Ok((kind, Some((name, stat))))
    }

    /// Whether a ledger may go that is alone, or beside an image that is complete.
    fn ledger(&self, shelf: &ledger::Shelf<'_>) -> Result<Kind, Failure> {
        let Ok(Some(ledger)) = Ledger::read(shelf) else { return Ok(Kind::Orphan) };
        let complete = leftover::standing(&self.0, &ledger).is_some();
        if let Ok(image) = look_at(&self.0, self.0.name.as_ref())
            && (complete || leftover::likeness(image.as_fd(), &ledger.head().copy) != Likeness::Another)
        {
            if is_locked(&image) {
                let shown = self.path();
                return refuse(format!(
                    "{} is part of a vmferry job that is running: wait for it or end it",
                    shown.display()
                ));
            }
            // Of a change in place that did not begin.
            leftover::unmark(image.as_fd());
        }
        Ok(if complete { Kind::Complete } else { Kind::Orphan })
    }

    fn shown(&self, name: impl AsRef<Path>) -> String {
        self.0.folder_path.join(name).display().to_string()
    }

    /// Removes a name, if it still means the file that was looked at.
    fn unlink(&self, name: &OsStr, stat: &Stat) -> Result<(), Failure> {
        let shown = self.shown(name);
        let folder = &*self.0.folder;
        let now = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|s| (s.st_dev, s.st_ino));
        if now != Ok((stat.st_dev, stat.st_ino)) {
            return refuse(format!("{shown} was replaced just now, and is left alone: try again"));
        }
        fs::unlinkat(folder, name, AtFlags::empty()).map_err(|e| {
            Failure::new(
                3,
                format!("{shown} cannot be removed ({e}): try as a user that may write its folder"),
            )
        })
    }
}

fn foreign(shown: &str, what: &str) -> Failure {
    Failure::new(3, format!("{shown} {what}, and is left alone: if nobody needs it, remove it with rm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_means_an_image_however_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, image) in [
            ("a.img", "a.img"),
            ("a.img.vmferry-part", "a.img"),
            ("a.img.vmferry-ledger", "a.img"),
            ("a.img.vmferry-ledge~", "a.img"),
            ("a.vmferry-part.vmferry-part", "a.vmferry-part"),
            (".vmferry-part", ".vmferry-part"),
        ] {
            let place = Place::at(&folder.path().join(name)).unwrap();
            assert_eq!(place.path().file_name(), Some(OsStr::new(image)), "{name}");
        }
        let target = Place::at(&folder.path().join("a.img")).unwrap().0;
        assert_eq!(image_of(&leftover::shelf(&target).unnamed()), Some("a.img".into()));
        assert_eq!(Place::at(Path::new("..")).unwrap_err().exit, 3);
        assert!(
            Place::at(&folder.path().join("no/a.img")).unwrap_err().reason.contains("cannot read folder")
        );
    }
}
