//! Where ledgers lie of copies that have no folder beside them: those on block devices.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::digest::hex;
use rustix::fs::{self, Mode, OFlags};

use crate::ledger::{self, Shelf};

/// The state folder, open.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) folder: Arc<OwnedFd>,
    pub(crate) path: PathBuf,
}

impl State {
    /// Opens it, and makes it if need be; nothing where there can be none.
    pub(crate) fn open() -> Option<State> {
        let path = path()?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).ok()?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = Arc::new(fs::open(&path, flags, Mode::empty()).ok()?);
        Some(State { folder, path })
    }

    /// Where the ledger of a device's copy lies.
    pub(crate) fn shelf(&self, device: &Path) -> Shelf<'_> {
        // Whatever name it was called by.
        let device = device.canonicalize().unwrap_or_else(|_| device.to_owned());
        let told = device.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let told: String =
            told.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect();
        let hash = blake3::hash(device.as_os_str().as_bytes());
        let name = OsString::from(format!("{told}-{}", hex(&hash.as_bytes()[..8])));
        Shelf { folder: self.folder.as_fd(), shown: &self.path, name: ledger::name_of(&name) }
    }
}

/// `STATE_DIRECTORY` (systemd.exec(5)), else the system's for root, the user's for others (XDG Base
/// Directory Specification).
fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = set("STATE_DIRECTORY") {
        return Some(given);
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/vmferry".into());
    }
    set("XDG_STATE_HOME")
        .or_else(|| Some(set("HOME")?.join(".local/state")))
        .map(|state| state.join("vmferry"))
}
