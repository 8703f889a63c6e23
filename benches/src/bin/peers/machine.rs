//! The machine and the programs that are compared on it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::Failed;
use crate::bed::said;

/// A program that contenders call.
pub struct Program {
    /// What it is called.
    pub name: &'static str,
    /// Where it comes from.
    pub origin: Origin,
    /// Option that makes it tell its version, if it has one.
    version: &'static str,
}

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This build.
    Here,
    /// The Debian package of this name: it has to be there.
    Debian(&'static str),
    /// Not in Debian: compared where somebody installed it.
    Elsewhere,
}

const fn program(name: &'static str, origin: Origin, version: &'static str) -> Program {
    Program { name, origin, version }
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    program("rawloop", Origin::Here, ""),
    program("vmferry", Origin::Here, "--version"),
    program("testbed", Origin::Here, ""),
    program("nbdcopy", Origin::Debian("libnbd-bin"), "--version"),
    program("nbdkit", Origin::Debian("nbdkit"), "--version"),
    program("qemu-nbd", Origin::Debian("qemu-utils"), "--version"),
    program("qemu-img", Origin::Debian("qemu-utils"), "--version"),
    program("rsync", Origin::Debian("rsync"), "--version"),
    program("mbuffer", Origin::Debian("mbuffer"), "--version"),
    program("socat", Origin::Debian("socat"), "-V"),
    program("dd", Origin::Debian("coreutils"), "--version"),
    program("ssh", Origin::Debian("openssh-client"), "-V"),
    program("scp", Origin::Debian("openssh-client"), ""),
    program("sshd", Origin::Debian("openssh-server"), ""),
    program("rclone", Origin::Debian("rclone"), "--version"),
    program("iperf3", Origin::Debian("iperf3"), "--version"),
    program("wdt", Origin::Elsewhere, "--version"),
    program("mscp", Origin::Elsewhere, ""),
];

impl Program {
    /// True when it is an executable on the path, or one of the build in `tools`.
    pub fn is_there(&self, tools: &Path) -> bool {
        if self.origin == Origin::Here {
            return tools.join(self.name).is_file();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(self.name).is_file())
    }

    /// The line in which it tells its version.
    pub fn version(&self, tools: &Path) -> Option<String> {
        if self.version.is_empty() {
            return None;
        }
        let mut command = match self.origin {
            Origin::Here => Command::new(tools.join(self.name)),
            _ => Command::new(self.name),
        };
        let output = command.arg(self.version).stdin(Stdio::null()).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        version_line(&String::from_utf8_lossy(&text))
    }
}

/// The first line with a number that looks like a version.
fn version_line(text: &str) -> Option<String> {
    let is_version = |word: &str| {
        let digits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
        digits.contains('.') || (digits.len() > 3 && word.len() == digits.len() + 1)
    };
    let line = text.lines().find(|line| line.split_whitespace().any(is_version))?;
    // Not what it was built with, on, or for.
    let end = [" (Debian", " (cJSON", ", OpenSSL", " on "].iter().filter_map(|cut| line.find(cut)).min();
    let line = line[..end.unwrap_or(line.len())].trim();
    Some(line.replace("  ", " "))
}

/// What the figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Logical cores.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Model and file system of the disk.
    pub disk: String,
}

impl Machine {
    /// This one, with the disk that `folder` is on.
    pub fn look(folder: &Path) -> Result<Self, Failed> {
        let field = |file: &str, name: &str| -> Result<String, Failed> {
            let text = fs::read_to_string(file)?;
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            Ok(line.split_once(':').map_or("unknown", |(_, value)| value).trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal")?;
        let kilobytes: u64 = memory.split_whitespace().next().unwrap_or_default().parse().unwrap_or(0);
        Ok(Self {
            cpu: field("/proc/cpuinfo", "model name")?,
            cores: std::thread::available_parallelism()?.get(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            memory: kilobytes << 10,
            disk: disk(folder),
        })
    }
}

fn disk(folder: &Path) -> String {
    let folder = folder.to_string_lossy();
    let mount = |column| said("findmnt", &["-nvo", column, "-T", &folder]).unwrap_or_default();
    let (system, device) = (mount("FSTYPE"), mount("SOURCE"));
    let model = said("lsblk", &["-ndo", "MODEL", device.trim()]).unwrap_or_default();
    let model = match model.trim() {
        "" if device.trim().starts_with("/dev/vd") => "virtual disk (virtio)",
        "" => "disk without a model name",
        model => model,
    };
    format!("{model}, {}", system.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, expected) in [
            ("nbdcopy 1.14.2\nlibnbd 1.14.2\n", "nbdcopy 1.14.2"),
            ("socat by G. and others\nsocat version 1.7.4.4 on 06 Nov 2022\n", "socat version 1.7.4.4"),
            ("rsync  version 3.2.7  protocol version 31\n", "rsync version 3.2.7 protocol version 31"),
            ("OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.15\n", "OpenSSH_9.2p1 Debian-2+deb12u3"),
            ("qemu-img version 7.2.9 (Debian 1:7.2)\n", "qemu-img version 7.2.9"),
            ("dd (coreutils) 9.1\nCopyright\n", "dd (coreutils) 9.1"),
            ("mbuffer version R20230301\nCopyright 2001-2023\n", "mbuffer version R20230301"),
        ] {
            assert_eq!(version_line(said).as_deref(), Some(expected));
        }
        assert_eq!(version_line("no such option\n"), None);
    }
}
