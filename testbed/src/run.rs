//! Runs the system's own tools and turns their failures into errors.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

use crate::error::{Doing, Error, Result};

/// The Debian package that brings a tool.
const PACKAGES: [(&str, &str); 12] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("losetup", "mount"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_io", "xfsprogs"),
    ("qemu-img", "qemu-utils"),
    ("perl", "perl-base"),
    ("sh", "dash"),
];

/// Fails with the cure unless this process is root.
pub(crate) fn need_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Missing {
        what: "the right to make namespaces and mounts".into(),
        cure: "run as root, for example with `sudo -E`".into(),
    })
}

pub(crate) fn missing_tool(name: &str) -> Error {
    let package = PACKAGES.iter().find(|(tool, _)| *tool == name).map_or(name, |(_, package)| package);
    Error::Missing {
        what: format!("the program `{name}`"),
        cure: format!("run `make deps` or `apt-get install {package}`"),
    }
}

/// True when `name` is an executable on the path.
pub(crate) fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(name).is_file())
}

/// Runs `command`, returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    judge(command, output)
}

/// Runs `command` with `input` on its standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| not_started(command, source))?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            // It stopped reading: its exit status and message say why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            other => other.doing(|| format!("writing to {}", printable(command)))?,
        }
    }
    let output = child.wait_with_output();
    judge(command, output)
}

/// Runs a tool with arguments, returns what it printed.
pub(crate) fn tool<S: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
    run(Command::new(name).args(args))
}

/// Runs a tool whose arguments hold no spaces, given as one line.
pub(crate) fn words(line: &str) -> Result<String> {
    let mut parts = line.split_whitespace();
    let name = parts.next().unwrap_or_default();
    tool(name, parts)
}

fn judge(command: &Command, output: std::io::Result<Output>) -> Result<String> {
    let output = output.map_err(|source| not_started(command, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command {
        command: printable(command),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

fn not_started(command: &Command, source: std::io::Error) -> Error {
    if source.kind() == ErrorKind::NotFound {
        return missing_tool(&command.get_program().to_string_lossy());
    }
    Error::io(format!("starting {}", printable(command)), source)
}

fn printable(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}
