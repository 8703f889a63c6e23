//! Where images go: the destination as typed → a folder and a name each, or a block device, checked
//! before anything changes.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use blockio::Image;
use proto::control::{Failure, Open};
use proto::manifest::{ImageEntry, check_name};
use rustix::fs::{self, Access, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::device::{self, Device};
use crate::ground::Ground;
use crate::ledger::{self, Ledger};
use crate::leftover::{self, Leftover};
use crate::owner::Wanted;

/// Refused before anything changed.
const REFUSED: u8 = 3;

/// Where the images of a job go.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A file each.
    Files(Vec<Spot>),
    /// The one image, onto a device.
    Device(Device),
}

/// What there is at one target.
#[derive(Debug)]
pub(crate) enum Spot {
    /// Room for a copy, and what an earlier attempt left of one.
    Free(Target, Option<Leftover>),
    /// The copy itself, complete since an earlier attempt of the same job; its tree digest.
    Complete(Target, Ledger, [u8; 32]),
}

/// A file to make.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) folder: Arc<OwnedFd>,
    pub(crate) folder_path: PathBuf,
    pub(crate) name: String,
    /// A regular file stands there and may be replaced.
    pub(crate) replaces: bool,
    /// Who it is to belong to.
    pub(crate) owner: Wanted,
}

impl Target {
    /// The path for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder_path.join(&self.name)
    }
}

/// The next step after a failure of this kind.
pub(crate) fn hint(kind: std::io::ErrorKind) -> &'static str {
    match kind {
        std::io::ErrorKind::PermissionDenied => {
            ": give another folder, or run the receiver as another user (user@HOST:, --remote-path 'sudo -n vmferry'; in a pull with sudo)"
        }
        _ => "",
    }
}

pub(crate) fn refuse<T>(reason: String) -> Result<T, Failure> {
    Err(Failure::new(REFUSED, reason))
}

/// A folder that images go to.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) fd: Arc<OwnedFd>,
    /// For messages.
    pub(crate) path: PathBuf,
    /// The name of the one image; `None`: as at the source.
    pub(crate) name: Option<String>,
}

/// One target per image, or the device that the path names; below a `ground`, if there is one.
///
/// # Errors
/// A sentence, exit code 3: folder missing, name taken, target in use, too little room.
pub(crate) fn resolve(open: &Open, direct: bool, ground: Option<&Ground>) -> Result<Destination, Failure> {
    let claim = |device: &Path, image| {
        if open.chown.is_some() {
            return refuse(format!(
                "{} is a block device, whose owner is set by the destination's system (udev): leave --chown out",
                device.display()
            ));
        }
        device::claim(device, image, open.force, direct).map(Destination::Device)
    };
    let folder = match (ground, &open.images[..]) {
        (None, images) => {
            let typed = expand_home(&open.path)?;
            match images {
                [image] if device::is_device(&typed) => return claim(&typed, image),
                _ => anywhere(open, typed)?,
            }
        }
        (Some(ground), images) => match (ground.device(open)?, images) {
            (Some(device), [image]) => return claim(&device, image),
            (Some(device), _) => {
                return refuse(format!("{} is one device: send one image to it", device.display()));
            }
            (None, _) => ground.folder(open)?,
        },
    };
    files(open, folder, direct, ground.is_none_or(|g| g.rule.overwrite)).map(Destination::Files)
}

/// The folder that a path means to the user of this process.
fn anywhere(open: &Open, typed: PathBuf) -> Result<Folder, Failure> {
    let is_folder = typed.is_dir();
    let ends_as_folder = open.path.ends_with('/') || open.path.is_empty();
    if (open.images.len() > 1 || ends_as_folder) && !is_folder {
        return refuse(format!("{} is not a folder on the destination: create it first", typed.display()));
    }
    let (path, name) = if is_folder {
        (typed, None)
    } else {
        let name = match typed.components().next_back() {
            Some(Component::Normal(name)) => name.to_str().map(str::to_owned),
            _ => None,
        };
        let Some(name) = name.filter(|n| check_name(n).is_ok()) else {
            return refuse(format!("{} does not name a file", typed.display()));
        };
        let parent = typed.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (parent.to_owned(), Some(name))
    };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = match fs::open(&path, flags, Mode::empty()) {
        Ok(fd) => Arc::new(fd),
        Err(Errno::NOENT) => {
            return refuse(format!(
                "folder {} does not exist on the destination: create it first",
                path.display()
            ));
        }
        Err(e) => {
            let hint = hint(e.kind());
            return refuse(format!("cannot open folder {}: {e}{hint}", path.display()));
        }
    };
    Ok(Folder { fd, path: path.canonicalize().unwrap_or(path), name })
}

fn files(open: &Open, into: Folder, direct: bool, may_replace: bool) -> Result<Vec<Spot>, Failure> {
    let Folder { fd: folder, path: folder_path, name: single_name } = into;
    // Else making the part file would find it out, which a dry run does not do.
    if let Err(e) = fs::accessat(&folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        let hint = hint(e.kind());
        return refuse(format!("cannot write into folder {}: {e}{hint}", folder_path.display()));
    }
    let owner = open.chown.as_ref().map_or(Ok(Wanted::default()), Wanted::resolve)?;
    let (mut targets, mut given) = (Vec::new(), 0);
    for image in &open.images {
        let name = single_name.clone().unwrap_or_else(|| image.name.clone());
        let (folder, folder_path, owner) = (folder.clone(), folder_path.clone(), owner.clone());
        if name.ends_with(ledger::SUFFIX) {
            return refuse(format!(
                "{name}: names that end in {} are for vmferry's own files",
                ledger::SUFFIX
            ));
        }
        let mut target = Target { folder, folder_path, name, replaces: false, owner };
        // A name in /dev that is no device is a mistyped one; /dev/shm alone is a place for files.
        let in_dev = target.folder_path.starts_with("/dev") && !target.folder_path.starts_with("/dev/shm");
        if in_dev && !device::is_device(&target.path()) {
            return refuse(format!(
                "{} is no block device on the destination, and a file there would lie in memory: check the name",
                target.path().display()
            ));
        }
        // First, since it waits for an attempt that is just ending.
        let found = leftover::find(&target, &open.images, direct)?;
        if let Some((ledger, tree)) = leftover::complete(&target, image) {
            given += image.allocated.min(image.size);
            targets.push(Spot::Complete(target, ledger, tree));
            continue;
        }
        target.replaces = standing(&target, &open.images, open.force, may_replace)?;
        // Its space is there already, or will be.
        if let Some(found) = &found {
            given += found.image.allocated().map_err(|e| Failure::new(REFUSED, e.to_string()))?;
        }
        targets.push(Spot::Free(target, found));
    }
    room(&folder, &folder_path, &open.images, given, open.force)?;
    if open.dry_run {
        owner.probe_in(&folder, &folder_path)?;
    }
    Ok(targets)
}

/// `~/` as a shell would have it; no shell ever sees the path.
fn expand_home(path: &str) -> Result<PathBuf, Failure> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (path.strip_prefix("~/").or((path == "~").then_some("")), home) {
        (Some(rest), Some(home)) => Ok(Path::new(&home).join(rest)),
        (Some(_), None) => refuse(format!("{path}: HOME is not set on the destination: give the whole path")),
        _ if path.is_empty() => Ok(PathBuf::from(".")),
        _ => Ok(PathBuf::from(path)),
    }
}

/// Whether a file stands at the target that may be replaced; everything else there is refused.
fn standing(target: &Target, images: &[ImageEntry], force: bool, may_replace: bool) -> Result<bool, Failure> {
    let path = target.path();
    let shown = path.display();
    let stat = match fs::statat(&target.folder, target.name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return refuse(format!("cannot look at {shown}: {e}")),
        Ok(stat) => stat,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return refuse(format!("{shown} is a folder: give another name")),
        FileType::Symlink => {
            return refuse(format!(
                "{shown} is a symbolic link, which a copy never follows: name the file itself"
            ));
        }
        FileType::BlockDevice => {
            return refuse(format!("{shown} is a block device: to overwrite it, name it itself"));
        }
        _ => return refuse(format!("{shown} is not a regular file: give another name")),
    }
    if leftover::is_source(&stat, images) {
        return refuse(format!("{shown} is the source itself: give another destination"));
    }
    if !may_replace {
        return refuse(format!(
            "{shown} exists on the destination, and this key may not replace files there: give another name"
        ));
    }
    if !force {
        return refuse(format!(
            "{shown} exists on the destination: give another name, or replace it with --force"
        ));
    }
    let standing = Image::open_at(fd(target), OsStr::from_bytes(target.name.as_bytes()), &path, false);
    if let Ok(image) = &standing
        && let Some(source) = leftover::is_on_a_source(image, images)
    {
        let name = &source.name;
        return refuse(format!("the source {name} lies on {shown}: give another destination"));
    }
    match standing.and_then(|i| i.users()) {
        Ok(users) if users.is_empty() => Ok(true),
        Ok(users) => refuse(format!(
            "{shown} is in use by {}: stop it first (--force does not replace it)",
            users.join(", ")
        )),
        Err(e) => refuse(e.to_string()),
    }
}

pub(crate) fn fd(target: &Target) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(&*target.folder)
}

/// Room for all images together: what is replaced stays until its copy is complete. How much of a
/// device is zero, and takes none, turns out on the way only; `force` lets it try. `given`: bytes that
/// unfinished copies of them take already.
fn room(
    folder: &OwnedFd,
    path: &Path,
    images: &[ImageEntry],
    given: u64,
    force: bool,
) -> Result<(), Failure> {
    let space = match fs::fstatvfs(folder) {
        Ok(space) => space,
        Err(e) => return refuse(format!("cannot ask {} for its free space: {e}", path.display())),
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize).saturating_add(given);
    let need: u64 = images.iter().map(|i| i.allocated.min(i.size)).fold(0, u64::saturating_add);
    let device = images.iter().any(|i| i.sector.is_some());
    if need > free && !(device && force) {
        let hint = if device { ", fewer where the device is zero (--force tries)" } else { "" };
        return refuse(format!(
            "not enough room in {} on the destination: {need} bytes are needed{hint}, {free} are free",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proto::manifest::SourceIdentity;

    pub(crate) fn open(path: &Path, names: &[&str], force: bool) -> Open {
        let entry = |name: &&str| ImageEntry {
            name: (*name).into(),
            size: 4096,
            sector: None,
            allocated: 4096,
            mode: 0o600,
            uid: 0,
            gid: 0,
            xattrs: vec![],
            identity: SourceIdentity { dev: 0, ino: 0, mtime_ns: 0, ctime_ns: 0 },
            storage: Default::default(),
        };
        Open {
            job: [0; 16],
            epoch: 1,
            chunk: 1 << 20,
            lanes: 1,
            path: path.to_str().unwrap().into(),
            force,
            dry_run: false,
            sync_window: None,
            readback: false,
            chown: None,
            images: names.iter().map(entry).collect(),
        }
    }

    fn resolve(open: &Open) -> Result<Vec<Target>, Failure> {
        match super::resolve(open, false, None)? {
            Destination::Files(spots) => Ok(spots
                .into_iter()
                .map(|spot| match spot {
                    Spot::Free(target, _) | Spot::Complete(target, ..) => target,
                })
                .collect()),
            Destination::Device(device) => panic!("{device:?}"),
        }
    }

    #[test]
    fn folder_or_file_as_scp_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let path = |p: &str, names: &[&str]| {
            resolve(&open(&base.join(p), names, false))
                .map(|t| t.iter().map(Target::path).collect::<Vec<_>>())
        };
        assert_eq!(path("", &["a"]).unwrap(), [base.join("a")]);
        assert_eq!(path("new.img", &["a"]).unwrap(), [base.join("new.img")]);
        assert_eq!(path("", &["a", "b"]).unwrap(), [base.join("a"), base.join("b")]);
        for (p, names) in [
            ("nowhere/", &["a"][..]),
            ("no/where", &["a"]),
            ("x", &["a", "b"]),
            ("..", &["a"]),
            (".", &["/etc/x"]),
        ] {
            if let Ok(got) = path(p, names) {
                assert!(p == ".." || p == ".", "{p}: {got:?}");
            }
        }
    }

    #[test]
    fn what_stands_there_is_not_replaced_without_force() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("l")).unwrap();
        let dir = dir.path();
        let reason = |n: &str, force| resolve(&open(dir, &[n], force)).unwrap_err().reason;
        assert!(reason("a", false).contains("--force"));
        assert!(resolve(&open(dir, &["a"], true)).unwrap()[0].replaces);
        assert!(reason("d", true).contains("folder"));
        assert!(reason("l", true).contains("symbolic link"));
    }

    #[test]
    fn room_is_counted_for_all_images_together() {
        let dir = tempfile::tempdir().unwrap();
        let mut o = open(dir.path(), &["a", "b"], false);
        for image in &mut o.images {
            image.size = 1 << 60;
            image.allocated = 1 << 55;
        }
        assert!(resolve(&o).unwrap_err().reason.contains("not enough room"));
        for image in &mut o.images {
            image.allocated = 0; // a hole costs nothing
        }
        assert!(resolve(&o).is_ok());
    }
}
