//! Who a copy belongs to: the source's owner as far as that is possible, or the one that was asked
//! for (`--chown`), and nobody else.

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use blockio::Image;
use nix::unistd;
use proto::control::Failure;
use proto::manifest::ImageEntry;
use proto::owner::Owner;
use rustix::fs::{self, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::target::refuse;

/// The owner that was asked for, in this host's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    uid: Option<u32>,
    gid: Option<u32>,
    /// As typed, for messages.
    typed: String,
}

impl Wanted {
    /// What the names stand for on this host; a number that is no name stands for itself.
    ///
    /// # Errors
    /// A sentence, exit code 3: unknown here.
    pub(crate) fn resolve(owner: &Owner) -> Result<Wanted, Failure> {
        let user = |name: &str| Ok(unistd::User::from_name(name)?.map(|user| user.uid.as_raw()));
        let group = |name: &str| Ok(unistd::Group::from_name(name)?.map(|group| group.gid.as_raw()));
        Ok(Wanted {
            uid: owner.user.as_deref().map(|name| number("user", name, user)).transpose()?,
            gid: owner.group.as_deref().map(|name| number("group", name, group)).transpose()?,
            typed: owner.to_string(),
        })
    }

    /// Whether anything was asked for.
    fn is_some(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Makes sure that a new file can be given away, by doing it and taking it back: capabilities,
    /// file systems and servers all have a word in it.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn probe(&self, file: impl AsFd, shown: impl Display) -> Result<(), Failure> {
        if !self.is_some() {
            return Ok(());
        }
        let there_and_back = fs::fstat(&file).and_then(|made| {
            give(&file, self.uid, self.gid)?;
            give(&file, Some(made.st_uid), Some(made.st_gid))
        });
        there_and_back.or_else(|e| refuse(self.not_given(shown, e)))
    }

    /// [`Wanted::probe`] where nothing may be made: on a file without a name, if the file system has
    /// such files.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn probe_in(&self, folder: &OwnedFd, shown: &Path) -> Result<(), Failure> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match fs::openat(folder, ".", flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) if self.is_some() => self.probe(file, format_args!("a file in {}", shown.display())),
            _ => Ok(()),
        }
    }

    /// Gives the copy of `entry` to whom it is due. A device has no owner to pass on: what was not
    /// asked for is the receiving user's then.
    ///
    /// # Errors
    /// A sentence, exit code 1, when what was asked for is not possible; what else is not becomes a
    /// notice.
    pub(crate) fn apply(
        &self,
        image: &Image,
        entry: &ImageEntry,
        path: &Path,
    ) -> Result<Option<String>, Failure> {
        let file = image.file();
        let of_source = |id: u32| entry.sector.is_none().then_some(id);
        let (uid, gid) = (self.uid.or(of_source(entry.uid)), self.gid.or(of_source(entry.gid)));
        let now = image.identity().map_err(|e| Failure::new(1, e.to_string()))?;
        if uid.is_none_or(|uid| uid == now.uid) && gid.is_none_or(|gid| gid == now.gid) {
            return Ok(None);
        }
        let Err(e) = give(file, uid, gid) else { return Ok(None) };
        if self.is_some() {
            give(file, self.uid, self.gid).map_err(|e| Failure::new(1, self.not_given(path.display(), e)))?;
            if self.uid.is_none() || self.gid.is_none() {
                let half = if self.uid.is_none() { "owner" } else { "group" };
                return Ok(Some(format!(
                    "{} was given to {}, but its {half} could not be kept ({e}): run the receiver as root, or name both (--chown USER:GROUP)",
                    path.display(),
                    self.typed
                )));
            }
            return Ok(None);
        }
        let group_kept = give(file, None, gid).is_ok();
        let (uid, gid) = (entry.uid, entry.gid);
        let owner = if group_kept { format!("owner {uid}") } else { format!("owner {uid}:{gid}") };
        Ok(Some(format!(
            "{} could not be given {owner}: it belongs to the receiving user; run the receiver as root, or chown it",
            path.display(),
        )))
    }

    fn not_given(&self, what: impl Display, e: Errno) -> String {
        let us = rustix::process::geteuid().as_raw();
        format!(
            "{what} cannot be given to {} by the receiving user ({us}) on the destination: {e}: run the receiver as root (root@HOST:, --remote-path 'sudo -n vmferry'; in a pull with sudo), or leave --chown out",
            self.typed
        )
    }
}

fn give(file: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    fs::fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

/// Names come first, as in chown(1): a name may look like a number.
fn number(
    kind: &str,
    name: &str,
    look_up: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, Failure> {
    match look_up(name) {
        Ok(Some(id)) => return Ok(id),
        Err(e) => return refuse(format!("cannot look up {kind} '{name}' on the destination: {e}")),
        Ok(None) => {}
    }
    // The highest number means "leave it" to chown(2).
    match name.parse() {
        Ok(id) if id != u32::MAX => Ok(id),
        _ => refuse(format!(
            "{kind} '{name}' is unknown on the destination: create it there, or give --chown another name or a number"
        )),
    }
}
