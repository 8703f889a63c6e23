//! vmferry, run from one host of a link to the other.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use testbed::net::{Host, Link, LinkConfig, Shape};

/// Why a bench ended early.
pub type Failed = Box<dyn Error>;

/// Between two runs: what a disk does on its own after a sync comes to an end.
const PAUSE: Duration = Duration::from_millis(500);

/// Two hosts, and the programs that were built beside this one.
#[derive(Debug)]
pub struct Hosts {
    tools: PathBuf,
    link: Link,
}

impl Hosts {
    /// Makes the hosts and one path between them.
    ///
    /// # Errors
    /// As [`Link::up`].
    pub fn up(shape: Shape) -> Result<Hosts, Failed> {
        let tools = std::env::current_exe()?.parent().ok_or("no folder of binaries")?.to_owned();
        Ok(Hosts { tools, link: Link::up(LinkConfig { shape, ..LinkConfig::default() })? })
    }

    /// The folder of the programs: it lies on a real disk, where a temporary folder may be memory.
    pub fn tools(&self) -> &Path {
        &self.tools
    }

    /// The hosts; a sends, b receives.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// One of our programs, on a host.
    pub fn tool(&self, host: &Host, name: &str) -> Command {
        host.command(self.tools.join(name))
    }

    /// `vmferry send` of `images` to `place` on the other host, with further words.
    pub fn send<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
        images: &[PathBuf],
        place: &Path,
    ) -> Command {
        let mut there = OsString::from("there:");
        there.push(place);
        let rsh =
            format!("{} local-shell --netns {}", self.tools.join("testbed").display(), self.link.b().name());
        let mut send = self.tool(self.link.a(), "vmferry");
        send.args(["send", "--json", "--rsh", &rsh, "--remote-path"]).arg(self.tools.join("vmferry"));
        send.args(words).args(images).arg(there);
        send
    }
}

/// Runs a command; the last line of what it prints, as JSON.
///
/// # Errors
/// When it cannot be started or prints something else.
pub fn last_object(command: &mut Command) -> Result<Value, Failed> {
    let output = command.stderr(Stdio::inherit()).output()?;
    parse_last(&output.stdout).map_err(|e| format!("{command:?}: {e}").into())
}

/// The last line of an output, as JSON.
///
/// # Errors
/// When it is not.
pub fn parse_last(output: &[u8]) -> Result<Value, Failed> {
    let text = std::str::from_utf8(output)?;
    let last = text.lines().last().ok_or("said nothing")?;
    Ok(serde_json::from_str(last)?)
}

/// The rate that vmferry reports when it is done, Gb/s.
///
/// # Errors
/// When it did not succeed.
pub fn rate(done: &Value) -> Result<f64, Failed> {
    let bits = done["rate_bps"].as_f64().ok_or_else(|| format!("no rate: {done}"))?;
    Ok(bits / 1e9)
}

/// Removes what arrived, and waits until the disk below `folder` is idle.
///
/// # Errors
/// When a file is not there.
pub fn clean(folder: &Path, files: &[PathBuf]) -> Result<(), Failed> {
    files.iter().try_for_each(std::fs::remove_file)?;
    Command::new("sync").arg("-f").arg(folder).status()?;
    std::thread::sleep(PAUSE);
    Ok(())
}
