//! Where keys live: one's own, whom one lets in, whom one believes.
//!
//! A folder with three files: `key` (private, PEM), `allow` (who may send here, see
//! `receiver::rules`), `hosts` (keys of services, a line `HOST[:PORT] KEY` each).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lanes::identity::{Fingerprint, Identity};
use proto::control::Failure;
use receiver::rules::{Rule, Rules};

use crate::exit;
use crate::place::SERVICE_PORT;

/// The folder of keys.
#[derive(Debug)]
pub struct Keys {
    folder: PathBuf,
}

fn failed(reason: String) -> Failure {
    Failure::new(exit::REFUSED, reason)
}

impl Keys {
    /// The folder that was named, or the usual one: /etc/vmferry for root, else in the user's
    /// configuration (XDG Base Directory Specification).
    ///
    /// # Errors
    /// A user without a home.
    pub fn at(named: Option<&Path>) -> Result<Keys, Failure> {
        if let Some(folder) = named {
            return Ok(Keys { folder: folder.to_owned() });
        }
        if nix::unistd::geteuid().is_root() {
            return Ok(Keys { folder: "/etc/vmferry".into() });
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let folder =
            absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
        match folder {
            Some(folder) => Ok(Keys { folder: folder.join("vmferry") }),
            None => Err(failed("HOME is not set: name the folder of keys with --config".into())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The allow file.
    pub fn allow_file(&self) -> PathBuf {
        self.path("allow")
    }

    /// The key pair, if there is one.
    ///
    /// # Errors
    /// A key file that cannot be read, that others can read, or that is none.
    pub fn identity(&self) -> Result<Option<Identity>, Failure> {
        let path = self.path("key");
        let shown = path.display();
        let cannot = |e: std::io::Error| failed(format!("cannot read the key {shown}: {e}"));
        let file = match File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(cannot)?,
        };
        let mode = file.metadata().map_err(cannot)?.mode();
        if mode & 0o077 != 0 {
            return Err(failed(format!(
                "the key {shown} can be read by others: chmod 600 it, or make a new one if somebody may have"
            )));
        }
        let text = std::io::read_to_string(file).map_err(cannot)?;
        Identity::from_pem(&text).map(Some).map_err(|e| failed(format!("{shown}: {e}")))
    }

    /// The key pair; without one, the sentence that says how to make it.
    ///
    /// # Errors
    /// As [`Keys::identity`].
    pub fn own(&self) -> Result<Identity, Failure> {
        let none =
            || failed(format!("there is no key in {}: make one with 'vmferry key'", self.folder.display()));
        self.identity()?.ok_or_else(none)
    }

    /// The key pair, made if there is none: then `true`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn make(&self) -> Result<(Identity, bool), Failure> {
        let _alone = self.lock()?;
        if let Some(identity) = self.identity()? {
            return Ok((identity, false));
        }
        let (identity, text) = Identity::lasting().map_err(|e| Failure::new(exit::FAILED, e.to_string()))?;
        self.write("key", &text, 0o600)?;
        Ok((identity, true))
    }

    /// A file of lines, empty when it does not exist.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn lines(&self, name: &str) -> Result<String, Failure> {
        match fs::read_to_string(self.path(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
            other => other.map_err(|e| failed(format!("cannot read {}: {e}", self.path(name).display()))),
        }
    }

    /// Who may send here.
    ///
    /// # Errors
    /// A file that cannot be read, or has a faulty line, which is named.
    pub fn rules(&self) -> Result<Rules, Failure> {
        let text = self.lines("allow")?;
        Rules::parse(&text).map_err(|why| failed(format!("{}: {why}", self.allow_file().display())))
    }

    /// Puts a rule into the allow file, in the place of one for the same key.
    ///
    /// # Errors
    /// As [`Keys::rules`], and a folder that cannot be written.
    pub fn allow(&self, rule: &Rule) -> Result<(), Failure> {
        self.rules()?;
        let line = rule.to_string();
        // What cannot be read back would lock everybody out.
        if line.contains(char::is_control) || !matches!(Rule::parse(&line), Ok(Some(same)) if same == *rule) {
            let reason =
                format!("{line:?} cannot be a line of {}: use plain names", self.allow_file().display());
            return Err(Failure::new(exit::USAGE, reason));
        }
        let is_it = |line: &str| matches!(Rule::parse(line), Ok(Some(other)) if other.key == rule.key);
        self.change("allow", is_it, Some(line)).map(drop)
    }

    /// Takes a key out of the allow file; whether it was in it.
    ///
    /// # Errors
    /// As [`Keys::allow`].
    pub fn forbid(&self, key: &Fingerprint) -> Result<bool, Failure> {
        let is_it = |line: &str| matches!(Rule::parse(line), Ok(Some(other)) if other.key == *key);
        self.change("allow", is_it, None)
    }

    /// The key that a service is known by.
    ///
    /// # Errors
    /// A hosts file that cannot be read.
    pub fn of_host(&self, host: &str, port: u16) -> Result<Option<Fingerprint>, Failure> {
        let text = self.lines("hosts")?;
        let name = host_name(host, port);
        for (number, line) in (1..).zip(text.lines()) {
            let Some((known, key)) = known_host(line) else { continue };
            if known == name {
                let at = self.path("hosts");
                let faulty = |why| failed(format!("{} line {number}: {why}", at.display()));
                return key.parse().map(Some).map_err(faulty);
            }
        }
        Ok(None)
    }

    /// From now on the service is known by this key.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn trust(&self, host: &str, port: u16, key: &Fingerprint) -> Result<(), Failure> {
        let name = host_name(host, port);
        let is_it = |line: &str| known_host(line).is_some_and(|(known, _)| known == name);
        self.change("hosts", is_it, Some(format!("{name} {key}"))).map(drop)
    }

    /// Replaces the lines that are meant by one new line, or by none. Whether there were any.
    fn change(
        &self,
        name: &str,
        is_it: impl Fn(&str) -> bool,
        line: Option<String>,
    ) -> Result<bool, Failure> {
        let _alone = self.lock()?;
        let text = self.lines(name)?;
        let mut lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|l| is_it(l));
        lines.retain(|l| !is_it(l));
        if let Some(line) = &line {
            lines.insert(at.unwrap_or(lines.len()), line);
        }
        let text: String = lines.iter().flat_map(|l| [l, "\n"]).collect();
        self.write(name, &text, 0o644)?;
        Ok(at.is_some())
    }

    /// Keeps other calls from changing the folder, until it is dropped.
    fn lock(&self) -> Result<File, Failure> {
        let shown = self.folder.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.folder)
            .and_then(|()| File::open(&self.folder))
            .and_then(|folder| folder.lock().map(|()| folder))
            .map_err(|e| failed(format!("cannot use folder {shown} for keys: {e}")))
    }

    /// A file is replaced as a whole: nobody reads half a list. The folder is locked by the caller.
    fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), Failure> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        let write = || {
            let _ = fs::remove_file(&new);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|e| failed(format!("cannot write {}: {e}", path.display())))
    }
}

fn known_host(line: &str) -> Option<(&str, &str)> {
    let line = line.split('#').next()?.trim();
    line.split_once(char::is_whitespace).map(|(name, key)| (name, key.trim()))
}

/// How a service is called in the hosts file.
pub fn host_name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if port == SERVICE_PORT { host } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> (tempfile::TempDir, Keys) {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::at(Some(&dir.path().join("new/folder"))).unwrap();
        (dir, keys)
    }

    #[test]
    fn a_key_is_made_once_and_kept_private() {
        let (_dir, keys) = keys();
        assert!(keys.own().unwrap_err().reason.contains("vmferry key"));
        let (first, new) = keys.make().unwrap();
        assert!(new);
        let (again, new) = keys.make().unwrap();
        assert!(!new && again.fingerprint() == first.fingerprint());
        let path = keys.path("key");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(keys.own().unwrap_err().reason.contains("chmod 600"));
        fs::write(&path, "no key").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(keys.make().unwrap_err().reason.contains("not a private key"));
    }

    #[test]
    fn lines_are_replaced_in_place_and_comments_stay() {
        let (_dir, keys) = keys();
        let key = |n| Fingerprint([n; 32]);
        keys.allow(&Rule::new(key(1))).unwrap();
        let text = format!("# friends\n{}\n\n{} overwrite # b\n", key(1), key(2));
        fs::write(keys.allow_file(), text).unwrap();
        keys.allow(&Rule { overwrite: true, ..Rule::new(key(1)) }).unwrap();
        keys.allow(&Rule::new(key(3))).unwrap();
        let want = format!("# friends\n{} overwrite\n\n{} overwrite # b\n{}\n", key(1), key(2), key(3));
        assert_eq!(keys.lines("allow").unwrap(), want);
        assert!(keys.forbid(&key(1)).unwrap() && !keys.forbid(&key(1)).unwrap());
        assert_eq!(keys.rules().unwrap().len(), 2);
        for name in ["a\nb", "a\u{1b}[2J"] {
            let rule = Rule { name: Some(name.into()), ..Rule::new(key(4)) };
            assert!(keys.allow(&rule).unwrap_err().reason.contains("cannot be a line"));
        }
        fs::write(keys.allow_file(), "nonsense\n").unwrap();
        assert!(keys.allow(&Rule::new(key(1))).unwrap_err().reason.contains("line 1"));
        assert_eq!(keys.lines("allow").unwrap(), "nonsense\n");
    }

    #[test]
    fn hosts_are_known_by_name_and_port() {
        let (_dir, keys) = keys();
        let key = |n| Fingerprint([n; 32]);
        assert_eq!(keys.of_host("h", SERVICE_PORT).unwrap(), None);
        keys.trust("H", SERVICE_PORT, &key(1)).unwrap();
        keys.trust("h", 7000, &key(2)).unwrap();
        keys.trust("h", SERVICE_PORT, &key(3)).unwrap();
        assert_eq!(keys.of_host("h", SERVICE_PORT).unwrap(), Some(key(3)));
        assert_eq!(keys.of_host("h", 7000).unwrap(), Some(key(2)));
        assert_eq!(keys.of_host("h", 7001).unwrap(), None);
        assert_eq!(keys.lines("hosts").unwrap().lines().count(), 2);
        fs::write(keys.path("hosts"), "h SHA256:no\n").unwrap();
        assert!(keys.of_host("h", SERVICE_PORT).unwrap_err().reason.contains("line 1"));
    }
}
