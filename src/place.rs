//! `HOST:PATH`, as scp has it, or `vmferry://HOST/PATH`.

use std::path::Path;
use std::str::FromStr;

/// A place on another host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// As given to the remote shell: `host`, `user@host`.
    pub host: String,
    /// Path there; empty: the folder that a login starts in, or the one that a service gives.
    pub path: String,
    /// The port of the service that is asked; `None`: a remote shell starts a receiver.
    pub service: Option<u16>,
}

/// TCP port of a service unless another is named: VMFR on a telephone's keys.
pub const SERVICE_PORT: u16 = 8637;

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
        // Schemes have no case (RFC 3986, 3.1).
        if let Some((scheme, rest)) = text.split_once("://")
            && scheme.eq_ignore_ascii_case("vmferry")
        {
            return of_service(text, rest);
        }
        // One behind a slash belongs to a file name.
        let Some((host, path)) = colon(text).map(|at| (&text[..at], &text[at + 1..])) else {
            return Err(format!("'{text}' is not HOST:PATH (a local copy needs no vmferry)"));
        };
        if host.contains('/') {
            return Err(format!("'{text}' is a local path: the destination is HOST:PATH"));
        }
        check(text, host, path)?;
        Ok(Place { host: host.into(), path: path.into(), service: None })
    }
}

fn check(text: &str, host: &str, path: &str) -> Result<(), String> {
    if host.is_empty()
        || host.starts_with('-')
        || host.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Err(format!("'{host}' cannot be a host in '{text}'"));
    }
    if path.contains('\0') || path.len() > 4000 {
        return Err("that path is not possible".into());
    }
    Ok(())
}

/// `HOST[:PORT][/PATH]`.
fn of_service(text: &str, rest: &str) -> Result<Place, String> {
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]));
    let (host, port) = host_and_port(authority)?;
    if host.contains('@') {
        return Err(format!("'{text}': a service knows keys, not users: leave out what is before the @"));
    }
    check(text, host, path)?;
    // Two slashes make an absolute path: a device.
    Ok(Place { host: host.into(), path: path.into(), service: Some(port) })
}

/// `HOST[:PORT]`; an IPv6 address with a port stands in brackets.
///
/// # Errors
/// A sentence.
pub fn host_and_port(text: &str) -> Result<(&str, u16), String> {
    let bracket = text.rfind(']').map_or(0, |at| at + 1);
    let several = text.matches(':').count() > 1 && bracket == 0;
    let Some((host, port)) = text[bracket..].rsplit_once(':').filter(|_| !several) else {
        return Ok((text, SERVICE_PORT));
    };
    match port.parse() {
        Ok(port) if port > 0 => Ok((&text[..bracket + host.len()], port)),
        _ => Err(format!("'{port}' is not a port in '{text}'")),
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
        for bad in ["/local/path", "./a:b/c", "plain", ":x", "-oProxyCommand=sh:x", "a b:x"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn services() {
        for (text, host, machine, port, path) in [
            ("vmferry://h/a.img", "h", "h", 8637, "a.img"),
            ("vmferry://h", "h", "h", 8637, ""),
            ("VMferry://h", "h", "h", 8637, ""),
            ("vmferry://h:7000/", "h", "h", 7000, ""),
            ("vmferry://h//dev/vg/a", "h", "h", 8637, "/dev/vg/a"),
            ("vmferry://10.0.0.2:1/a:b", "10.0.0.2", "10.0.0.2", 1, "a:b"),
            ("vmferry://[fd77::2]/x", "[fd77::2]", "fd77::2", 8637, "x"),
            ("vmferry://[fe80::2%eth1]:7000/x", "[fe80::2%eth1]", "fe80::2%eth1", 7000, "x"),
            ("vmferry://fd77::2/x", "fd77::2", "fd77::2", 8637, "x"),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!((place.host.as_str(), place.machine(), place.path.as_str()), (host, machine, path));
            assert_eq!(place.service, Some(port), "{text}");
        }
        for bad in [
            "vmferry://",
            "vmferry:///x",
            "vmferry://u@h/x",
            "vmferry://h:0/x",
            "vmferry://h:x/y",
            "vmferry://h:/y",
        ] {
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
