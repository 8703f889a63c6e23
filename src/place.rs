//! `HOST:PATH`, as scp has it.

use std::path::Path;
use std::str::FromStr;

/// A place on another host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// As given to the remote shell: `host`, `user@host`.
    pub host: String,
    /// Path there; empty: the folder that a login starts in.
    pub path: String,
}

impl Place {
    /// The host as a remote shell takes it: ssh(1) wants an IPv6 address without brackets.
    pub fn shell_host(&self) -> String {
        match self.host.rsplit_once('@') {
            Some((user, _)) => format!("{user}@{}", self.machine()),
            None => self.machine().to_owned(),
        }
    }

    /// The part of the host that names a machine, without user and brackets.
    pub fn machine(&self) -> &str {
        let host = self.host.rsplit_once('@').map_or(self.host.as_str(), |(_, h)| h);
        host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
    }
}

/// The colon behind the host. One inside [..] belongs to an IPv6 address.
fn colon(text: &str) -> Option<usize> {
    let from = if text.starts_with('[') || text.contains("@[") { text.find(']').unwrap_or(0) } else { 0 };
    text[from..].find(':').map(|at| at + from)
}

/// Whether a word means a place on another host: as with scp, one with a colon before any slash.
pub fn is_remote(word: &Path) -> bool {
    word.to_str().is_some_and(|text| colon(text).is_some_and(|at| !text[..at].contains('/')))
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text.starts_with("vmferry://") {
            return Err("the receiver service (vmferry://) is not part of this version: use HOST:PATH".into());
        }
        // One behind a slash belongs to a file name.
        let Some((host, path)) = colon(text).map(|at| (&text[..at], &text[at + 1..])) else {
            return Err(format!("'{text}' is not HOST:PATH (a local copy needs no vmferry)"));
        };
        if host.contains('/') {
            return Err(format!("'{text}' is a local path: the destination is HOST:PATH"));
        }
        if host.is_empty()
            || host.starts_with('-')
            || host.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(format!("'{host}' cannot be a host in '{text}'"));
        }
        if path.contains('\0') || path.len() > 4000 {
            return Err("that path is not possible".into());
        }
        Ok(Place { host: host.into(), path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_paths() {
        for (text, host, machine, path) in [
            ("h:/images/", "h", "h", "/images/"),
            ("root@h:x.img", "root@h", "h", "x.img"),
            ("h:", "h", "h", ""),
            ("h:a:b", "h", "h", "a:b"),
            ("[fd77::2]:/x", "[fd77::2]", "fd77::2", "/x"),
            ("u@[fd77::2]:/x", "u@[fd77::2]", "fd77::2", "/x"),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!((place.host.as_str(), place.machine(), place.path.as_str()), (host, machine, path));
            assert_eq!(place.shell_host(), host.replace(['[', ']'], ""));
        }
        for bad in ["/local/path", "./a:b/c", "plain", ":x", "-oProxyCommand=sh:x", "a b:x", "vmferry://h/x"]
        {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn other_hosts_are_told_from_files() {
        for (word, remote) in [
            ("h:x", true),
            ("u@h:~/x y", true),
            ("[fd77::2]:/x", true),
            ("-o:x", true),
            ("./h:x", false),
            ("/images/a:b", false),
            ("plain", false),
            ("[ab]", false),
        ] {
            assert_eq!(is_remote(Path::new(word)), remote, "{word}");
        }
    }
}
