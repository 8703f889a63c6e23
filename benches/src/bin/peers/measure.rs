//! What a run costs: CPU time and memory of an end, connections of a host.
//!
//! Each end of a run has a control group of its own, so that all that a tool starts is counted,
//! and nothing else is. What the kernel does in threads of its own (writing back, most of the work
//! of interrupts) is not in there; the workers of io_uring are.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use vmferry_benches::peaks::peak_in;

use crate::Failed;

/// Which files of a control group tell the CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `cpuacct.usage`, nanoseconds.
    One,
    /// `usage_usec` in `cpu.stat`, microseconds.
    Two,
}

/// A control group; dropping it kills what still runs in there and removes it.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Makes the group `name` where this machine accounts CPU time.
    pub fn new(name: &str) -> Result<Self, Failed> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let (root, version) = accounting(&mounts).ok_or("no cgroup file system is mounted")?;
        let folder = root.join(name);
        fs::create_dir(&folder).map_err(|e| format!("cannot make the control group {name}: {e}"))?;
        Ok(Self { folder, version })
    }

    /// A process that writes 0 to this file joins the group.
    pub fn door(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// CPU time so far, of processes that ended as well, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64, Failed> {
        let name = match self.version {
            Version::One => "cpuacct.usage",
            Version::Two => "cpu.stat",
        };
        let text = fs::read_to_string(self.folder.join(name))?;
        usage(self.version, &text).ok_or_else(|| format!("{name} says '{text}'").into())
    }

    /// Processes in the group.
    pub fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.door()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Peak memory of the processes that run now, together, in bytes.
    pub fn memory(&self) -> u64 {
        let status = |pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        self.pids().into_iter().map(|pid| peak_in(&status(pid))).sum()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..500 {
            let pids = self.pids();
            if pids.is_empty() && fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            for pid in pids.into_iter().filter_map(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Where CPU time is accounted, by the lines of `/proc/mounts`.
fn accounting(mounts: &str) -> Option<(PathBuf, Version)> {
    let mut second = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(place), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == "cpuacct") => {
                return Some((place.into(), Version::One));
            }
            "cgroup2" => second = Some((place.into(), Version::Two)),
            _ => {}
        }
    }
    second
}

/// Seconds, by the content of the file that tells them.
fn usage(version: Version, text: &str) -> Option<f64> {
    match version {
        Version::One => text.trim().parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e9),
        Version::Two => {
            let number = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            number.trim().parse::<f64>().ok().map(|microseconds| microseconds / 1e6)
        }
    }
}

/// The TCP sockets of the network namespace that a process is in, as `/proc/net/tcp` has them.
pub fn sockets(pid: i32) -> String {
    let read = |name| fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(name));
    read("net/tcp").unwrap_or_default() + &read("net/tcp6").unwrap_or_default()
}

/// True when something listens on `port`.
pub fn listens(sockets: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    rows(sockets).any(|(local, state)| state == "0A" && local.ends_with(&port))
}

/// Connections that are established from or to `address`.
pub fn connections(sockets: &str, address: Ipv4Addr) -> usize {
    let address = format!("{:08X}", u32::from_ne_bytes(address.octets()));
    let host = |local: &str| local.split(':').next().is_some_and(|host| host.ends_with(&address));
    rows(sockets).filter(|(local, state)| *state == "01" && host(local)).count()
}

/// Local address and state of each socket.
fn rows(sockets: &str) -> impl Iterator<Item = (&str, &str)> {
    sockets.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?, words.nth(1)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_preferred_where_it_accounts() {
        let two = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let one = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let other = "cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n";
        assert_eq!(accounting(other), None);
        let found = accounting(&format!("{two}{other}"));
        assert_eq!(found, Some(("/sys/fs/cgroup/unified".into(), Version::Two)));
        let found = accounting(&format!("{two}{one}"));
        assert_eq!(found, Some(("/sys/fs/cgroup/cpu,cpuacct".into(), Version::One)));
    }

    #[test]
    fn cpu_time_is_read_in_seconds() {
        assert_eq!(usage(Version::One, "2500000000\n"), Some(2.5));
        assert_eq!(usage(Version::Two, "usage_usec 1500000\nuser_usec 1\n"), Some(1.5));
        assert_eq!(usage(Version::One, ""), None);
        assert_eq!(usage(Version::Two, "user_usec 1\n"), None);
    }

    #[test]
    fn memory_is_the_peak_and_the_huge_pages() {
        let status = "VmPeak:\t 9000 kB\nVmHWM:\t 2048 kB\nVmRSS:\t 1000 kB\nHugetlbPages:\t 1024 kB\n";
        assert_eq!(peak_in(status), 3 << 20);
        assert_eq!(peak_in(""), 0);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_are_counted_by_state_and_address() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 01004D0A:8000 02004D0A:1BBC 01 0:0\n\
            1: 0000000000000000FFFF000001004D0A:8001 0000000000000000FFFF000002004D0A:1BBC 01 0:0\n\
            2: 0100007F:8002 0100007F:1BBC 01 0:0\n\
            3: 01004D0A:8003 02004D0A:1BBC 06 0:0\n\
            4: 00000000:1BBC 00000000:0000 0A 0:0\n";
        assert_eq!(connections(table, Ipv4Addr::new(10, 77, 0, 1)), 2);
        assert!(listens(table, 7100));
        assert!(!listens(table, 0x8000));
    }
}
