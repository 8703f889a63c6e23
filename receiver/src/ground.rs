//! What a service lets the holder of a key reach: one folder and what is below it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::control::{Failure, Open};
use proto::manifest::check_name;
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::rules::Rule;
use crate::target::{Folder, refuse};

/// The way to a file is never one through a link, and never one that leads out (openat2(2)), also
/// not when somebody changes folders meanwhile.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const AS_FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// The folder of one key, and its rule.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) rule: Arc<Rule>,
    folder: OwnedFd,
    path: PathBuf,
}

impl Ground {
    /// Opens the folder of a rule below that of the service.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn open(root: &Path, rule: Arc<Rule>) -> Result<Ground, Failure> {
        let path = root.join(&rule.into);
        let opened = fs::open(root, AS_FOLDER, Mode::empty()).and_then(|root| {
            let into = if rule.into.as_os_str().is_empty() { Path::new(".") } else { &rule.into };
            fs::openat2(&root, into, AS_FOLDER, Mode::empty(), BELOW)
        });
        match opened {
            Ok(folder) => Ok(Ground { rule, folder, path }),
            Err(Errno::NOSYS) => refuse(
                "the service may not use openat2(2), without which it lets nobody in: take RestrictSUIDSGID= out of its unit, or whatever filters its system calls".into(),
            ),
            Err(e) => refuse(format!("the folder of this key, {}, cannot be opened: {e}", path.display())),
        }
    }

    /// Holds the job against the rule, and leaves of what it asks for what the rule gives.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn check(&self, open: &mut Open) -> Result<(), Failure> {
        let bytes = open.images.iter().map(|i| i.size).fold(0, u64::saturating_add);
        if let Some(most) = self.rule.max_bytes.filter(|most| bytes > *most) {
            return refuse(format!("the images have {bytes} bytes, a job of this key may have {most}"));
        }
        if !self.rule.keep_owner {
            if open.chown.is_some() {
                return refuse("this key may not say to whom images belong: leave --chown out".into());
            }
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            open.images.iter_mut().for_each(|i| (i.uid, i.gid) = (uid.as_raw(), gid.as_raw()));
        }
        Ok(())
    }

    /// The block device that the path means, if the rule gives it.
    ///
    /// # Errors
    /// A sentence, exit code 3, for one that it does not give.
    pub(crate) fn device(&self, open: &Open) -> Result<Option<PathBuf>, Failure> {
        let path = Path::new(&open.path);
        if self.rule.devices.iter().any(|d| d == path) {
            return Ok(Some(path.to_owned()));
        }
        if path.starts_with("/dev") {
            return refuse(format!("{} is not a device that this key may overwrite", path.display()));
        }
        Ok(None)
    }

    /// The folder that the path leads to, and the name in it that it ends with, if it does.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn folder(&self, open: &Open) -> Result<Folder, Failure> {
        let typed = open.path.trim_start_matches('/');
        let typed = Path::new(if typed.is_empty() { "." } else { typed });
        let one_file = open.images.len() == 1 && !open.path.is_empty() && !open.path.ends_with('/');
        match self.below(typed) {
            Ok(folder) => return Ok(Folder { fd: Arc::new(folder), path: self.shown(typed), name: None }),
            Err(Errno::NOENT | Errno::NOTDIR) if one_file => {}
            Err(e) => return self.no_folder(typed, e),
        }
        let name = typed.file_name().and_then(|n| n.to_str()).filter(|n| check_name(n).is_ok());
        let Some(name) = name else { return refuse(format!("{} does not name a file", typed.display())) };
        let parent = typed.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match self.below(parent) {
            Ok(fd) => Ok(Folder { fd: Arc::new(fd), path: self.shown(parent), name: Some(name.into()) }),
            Err(e) => self.no_folder(parent, e),
        }
    }

    fn shown(&self, below: &Path) -> PathBuf {
        // Without the dots that say nothing.
        self.path.join(below).components().collect()
    }

    fn below(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        fs::openat2(&self.folder, path, AS_FOLDER, Mode::empty(), BELOW)
    }

    fn no_folder<T>(&self, path: &Path, why: Errno) -> Result<T, Failure> {
        let path = path.display();
        refuse(match why {
            Errno::NOENT => format!("folder {path} does not exist on the destination: create it there first"),
            Errno::NOTDIR => format!("{path} is not a folder on the destination: create it there first"),
            Errno::XDEV => format!("{path} leads out of the folder of this key: name one below it"),
            Errno::LOOP => {
                format!(
                    "{path} leads through a symbolic link, which a service never follows: name the place itself"
                )
            }
            e => format!("cannot open folder {path} on the destination: {e}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes::identity::Fingerprint;
    use std::os::unix::fs::symlink;

    fn open(path: &str, images: usize) -> Open {
        crate::target::tests::open(Path::new(path), &vec!["a"; images], false)
    }

    #[test]
    fn nothing_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("in/sub")).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        symlink(dir.path().join("outside"), root.join("in/away")).unwrap();
        symlink("sub", root.join("in/near")).unwrap();
        let rule = Rule { into: "in".into(), ..Rule::new(Fingerprint([1; 32])) };
        let ground = Ground::open(&root, Arc::new(rule)).unwrap();
        let found = |path: &str| {
            ground.folder(&open(path, 1)).map(|f| (f.path.strip_prefix(&root).unwrap().to_owned(), f.name))
        };
        let (inside, sub) = (PathBuf::from("in"), PathBuf::from("in/sub"));
        assert_eq!(found("").unwrap(), (inside.clone(), None));
        assert_eq!(found("/").unwrap(), (inside.clone(), None));
        assert_eq!(found("/new.img").unwrap(), (inside, Some("new.img".into())));
        assert_eq!(found("sub").unwrap(), (sub.clone(), None));
        assert_eq!(found("//sub/x").unwrap(), (sub, Some("x".into())));
        for (path, why) in [
            ("../../etc/x", "leads out"),
            ("..", "leads out"),
            ("/../x", "leads out"),
            ("sub/../../x", "leads out"),
            ("away/x", "symbolic link"),
            ("away", "symbolic link"),
            ("near/x", "symbolic link"),
            ("no/where", "does not exist"),
            ("new/", "does not exist"),
        ] {
            let reason = found(path).unwrap_err().reason;
            assert!(reason.contains(why), "{path}: {reason}");
        }
        assert!(ground.folder(&open("new.img", 2)).unwrap_err().reason.contains("does not exist"));
    }

    #[test]
    fn a_rule_gives_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let rule = Rule {
            max_bytes: Some(8192),
            devices: vec!["/dev/vg/a".into()],
            ..Rule::new(Fingerprint([1; 32]))
        };
        let ground = Ground::open(dir.path(), Arc::new(rule)).unwrap();
        let mut two = open("", 2);
        (two.images[0].uid, two.images[0].gid) = (7, 7);
        ground.check(&mut two).unwrap();
        assert_ne!((two.images[0].uid, two.images[0].gid), (7, 7), "the service's own");
        assert!(ground.check(&mut open("", 3)).unwrap_err().reason.contains("12288 bytes"));
        assert_eq!(ground.device(&open("/dev/vg/a", 1)).unwrap(), Some("/dev/vg/a".into()));
        assert_eq!(ground.device(&open("vg/a", 1)).unwrap(), None);
        assert!(ground.device(&open("/dev/vg/../vg/a", 1)).is_err());
        assert!(ground.device(&open("/dev/sda", 1)).is_err());
        let gone = Rule { into: "gone".into(), ..Rule::new(Fingerprint([1; 32])) };
        assert!(Ground::open(dir.path(), Arc::new(gone)).unwrap_err().reason.contains("gone"));
    }
}
