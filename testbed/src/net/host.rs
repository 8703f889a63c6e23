//! One host: a network namespace and what runs in it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Side;
use crate::error::{Doing, Error, Result};
use crate::run::words;

/// Where `ip netns` keeps its names.
const NAMESPACES: &str = "/run/netns";

/// One end of a [`Link`](super::Link): a network namespace.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    side: Side,
}

impl Host {
    pub(super) fn new(link: &str, side: Side) -> Self {
        let name = format!("{link}-{}", side.letter());
        Self { name, side }
    }

    /// Name of the namespace, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address on the first path: 10.77.0.1 for a, 10.77.0.2 for b.
    pub fn address(&self) -> IpAddr {
        self.address_on(0)
    }

    /// IPv6 address on the first path: fd77::1 for a, fd77::2 for b.
    pub fn address6(&self) -> IpAddr {
        self.address6_on(0)
    }

    /// IPv4 address on the path with number `path` (10.77.PATH.x).
    pub fn address_on(&self, path: u8) -> IpAddr {
        Ipv4Addr::new(10, 77, path, self.side.number()).into()
    }

    /// IPv6 address on the path with number `path` (fd77:0:0:PATH::x).
    pub fn address6_on(&self, path: u8) -> IpAddr {
        let last = u16::from(self.side.number());
        Ipv6Addr::new(0xfd77, 0, 0, u16::from(path), 0, 0, 0, last).into()
    }

    /// A command that will run on this host; its process id is the program's own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` on a thread of its own inside this host's namespace.
    ///
    /// Sockets that it makes, and threads that it starts, belong to the host for
    /// good, also after they were handed out.
    ///
    /// # Errors
    /// When the namespace is gone or may not be entered.
    ///
    /// # Panics
    /// When `work` panics: the panic goes on in the caller.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let path = self.path();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<T> {
                let handle = File::open(&path).doing(|| format!("opening {}", path.display()))?;
                move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
                    .doing(|| format!("entering {}", path.display()))?;
                Ok(work())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(super) fn exists(&self) -> bool {
        self.path().exists()
    }

    pub(super) fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Makes the namespace, with cubic and windows that fill a 32 MiB pipe.
    pub(super) fn create(&self) -> Result<()> {
        words(&format!("ip netns add {}", self.name))?;
        words(&format!("ip -n {} link set lo up", self.name))?;
        allow_cubic()?;
        // /proc/sys/net shows the namespace of the thread that opens it.
        self.inside(|| {
            set("tcp_congestion_control", "cubic")?;
            set("tcp_rmem", "4096 131072 33554432")?;
            set("tcp_wmem", "4096 65536 33554432")
        })?
    }

    pub(super) fn remove(&self) -> Result<()> {
        if self.exists() {
            words(&format!("ip netns del {}", self.name))?;
        }
        Ok(())
    }
}

/// A namespace may only use congestion controls that the machine allows to all
/// its users. The machine's own choice stays; the permission is left in place,
/// since other links may need it.
fn allow_cubic() -> Result<()> {
    const ALLOWED: &str = "tcp_allowed_congestion_control";
    let path = format!("/proc/sys/net/ipv4/{ALLOWED}");
    let allowed = fs::read_to_string(&path).doing(|| format!("reading {path}"))?;
    if allowed.split_whitespace().any(|name| name == "cubic") {
        return Ok(());
    }
    set(ALLOWED, &format!("{} cubic", allowed.trim())).map_err(|_| Error::Missing {
        what: "cubic congestion control".into(),
        cure: "run `modprobe tcp_cubic`".into(),
    })
}

fn set(key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv4/{key}");
    fs::write(&path, value).doing(|| format!("writing {value} to {path}"))
}

/// Names of namespaces that were made by processes that are no longer alive.
pub(super) fn stale() -> Vec<String> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            let mut parts = name.split('-');
            let (prefix, pid) = (parts.next(), parts.next());
            prefix == Some("vmf")
                && pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
        })
        .collect()
}
