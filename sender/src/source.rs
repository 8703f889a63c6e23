//! What is moved, and whether it may be moved now.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockio::{Identity, Image};
use proto::control::Failure;
use proto::manifest::{ImageEntry, SourceIdentity, Storage, XATTRS_MAX, check_name};

/// One source image, opened.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) image: Image,
    entry: ImageEntry,
    identity: Identity,
    notices: Vec<String>,
}

/// Keeps QEMU from starting to write an image, until it is closed, and says who may be writing it: a
/// part of a sentence.
///
/// # Errors
/// What the system says to the question.
pub fn in_use(image: &Image) -> Result<Option<String>, blockio::Error> {
    Ok(match (image.guard(), image.users()?.as_slice()) {
        (Ok(()), []) => None,
        (Err(e), []) => Some(e.to_string()),
        (_, users) => {
            Some(format!("{} is in use: {} may be writing it", image.path().display(), users.join(", ")))
        }
    })
}

/// Refused before anything changed.
const REFUSED: u8 = 3;
/// Time stamps of files move with the kernel's tick: 10 ms at most (CONFIG_HZ=100).
const TICK: Duration = Duration::from_millis(20);

/// Whether it was changed within the last tick.
fn is_fresh(identity: &Identity) -> bool {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let tick = TICK.as_nanos() as i128;
    (since as i128 - i128::from(identity.mtime_ns.max(identity.ctime_ns))).abs() < tick
}

impl Source {
    /// Opens an image and makes sure that nobody writes it, now or during the move. With `force`,
    /// writers are a notice instead of an error; `direct` asks for O_DIRECT.
    ///
    /// # Errors
    /// A sentence that names the image and the reason, exit code 3.
    pub fn open(path: &Path, direct: bool, force: bool) -> Result<Source, Failure> {
        let refused = |e: blockio::Error| Failure::new(REFUSED, e.to_string());
        let image = Image::open_source(path, direct).map_err(refused)?;
        let name = path.file_name().and_then(|n| n.to_str()).ok_or_else(|| {
            Failure::new(REFUSED, format!("the name of {} is not valid UTF-8: rename it", path.display()))
        })?;
        check_name(name).map_err(|reason| Failure::new(REFUSED, reason))?;
        let mut notices = Vec::new();
        let device = image.sectors();
        match in_use(&image).map_err(refused)? {
            Some(reason) if force => notices.push(format!("{reason}; the copy may be torn (--force)")),
            Some(reason) => {
                let hint = match device {
                    None => "stop the VM first, or copy a torn image with --force",
                    Some(_) => {
                        "what is written during the copy makes it torn, parts of it old and parts new; stop the VM or unmount it first, or copy it as it is with --force"
                    }
                };
                return Err(Failure::new(REFUSED, format!("{reason}: {hint}")));
            }
            None => {}
        }
        // Before the hole map is read: dirty pages are not yet extents on some file systems.
        image.sync_before_map().map_err(refused)?;
        notices.extend(image.take_notices());
        // A change within the tick in which the image was written last would show in no time stamp.
        if is_fresh(&image.identity().map_err(refused)?) {
            std::thread::sleep(TICK);
        }
        let identity = image.identity().map_err(refused)?;
        let storage = image.storage();
        let entry = ImageEntry {
            name: name.to_owned(),
            size: image.size(),
            sector: device.map(|sectors| sectors.logical),
            allocated: image.allocated().map_err(refused)?,
            // Who may use a device says nothing about a file.
            mode: if device.is_some() { 0o600 } else { identity.mode & 0o7777 },
            uid: identity.uid,
            gid: identity.gid,
            xattrs: if device.is_some() { Vec::new() } else { xattrs(&image, &mut notices) },
            identity: SourceIdentity {
                dev: identity.dev,
                ino: identity.ino,
                mtime_ns: identity.mtime_ns,
                ctime_ns: identity.ctime_ns,
            },
            storage: Storage::new(&storage.is, &storage.on),
        };
        Ok(Source { image, entry, identity, notices })
    }

    /// Its line of the manifest.
    pub fn entry(&self) -> &ImageEntry {
        &self.entry
    }

    /// What the user should know, a sentence each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// What turned out since it was opened, a sentence each.
    pub(crate) fn late_notices(&self) -> Vec<String> {
        self.image.take_notices()
    }

    /// Fails when the image is not what it was when it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), Failure> {
        let change = self.image.change_since(&self.identity).map_err(|e| Failure::new(1, e.to_string()))?;
        let Some(what) = change else { return Ok(()) };
        let path = self.image.path().display();
        Err(Failure::new(
            1,
            format!("{path} changed while it was copied ({what}): stop what writes it and send it again"),
        ))
    }
}

/// `user.*` attributes and POSIX ACLs; labels of the source's security policy stay behind.
fn xattrs(image: &Image, notices: &mut Vec<String>) -> Vec<(String, Vec<u8>)> {
    // Twice the limit: whatever does not fit is over it. A file system without attributes has none.
    let mut names = vec![0u8; 2 * XATTRS_MAX];
    let listed = rustix::fs::flistxattr(image.file(), &mut names).unwrap_or(0);
    let mut found = Vec::new();
    for name in names[..listed].split(|b| *b == 0).filter_map(|n| str::from_utf8(n).ok()) {
        if !name.starts_with("user.") && !name.starts_with("system.posix_acl_") {
            continue;
        }
        let mut value = vec![0u8; XATTRS_MAX];
        if let Ok(len) = rustix::fs::fgetxattr(image.file(), name, &mut value) {
            value.truncate(len);
            found.push((name.to_owned(), value));
        }
    }
    if found.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > XATTRS_MAX {
        let path = image.path().display();
        notices.push(format!("the extended attributes of {path} are over {XATTRS_MAX} bytes: left behind"));
        found.clear();
    }
    found
}
