//! Runs one contender once: starts both ends, watches them, ends what is left.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::net::Host;

use crate::Failed;
use crate::bed::Bed;
use crate::contenders::Contender;
use crate::measure::{self, Cgroup};
use crate::results::Figures;

/// Between two looks at the memory.
const SAMPLE: Duration = Duration::from_millis(50);
/// Looks at the memory for one at the connections.
const SAMPLES_PER_COUNT: u32 = 4;
/// A server listens by then.
const READY: Duration = Duration::from_secs(15);
/// What outlives its client by a moment is gone by then.
const LINGER: Duration = Duration::from_secs(5);
/// Ports are not used twice, so that none is still taken; some tools take several.
const PORTS: u16 = 7100;
const PORT_STEP: u16 = 8;

/// What holds for every run.
pub struct Limits<'a> {
    /// A run that takes longer has failed.
    pub timeout: Duration,
    /// Set when somebody wants the comparison to end.
    pub stop: &'a AtomicBool,
    /// Value of `PATH` for every tool.
    pub path: &'a std::ffi::OsStr,
}

/// Runs, checks and measures.
///
/// # Errors
/// Why there is nothing to measure, in one sentence.
pub fn run(bed: &Bed, contender: &Contender, limits: &Limits<'_>) -> Result<Figures, Failed> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Wraps after some thousand runs: by then the first ports are free again.
    let port = PORTS + u16::try_from(number % 4096)? * PORT_STEP;
    let plan = contender.plan(bed, port);
    bed.prepare(plan.sized)?;

    let group = |end| Cgroup::new(&format!("vmferry-peers-{}-{number}-{end}", std::process::id()));
    let (source, destination) = (group("source")?, group("destination")?);
    let ends = Ends { bed, limits, source, destination, deadline: Instant::now() + limits.timeout };
    let server = plan.server.as_deref().map(|line| ends.start(!plan.pull, line)).transpose()?;
    if let Some(server) = &server {
        ends.wait_until_it_listens(server, port)?;
    }
    let start = Instant::now();
    let client = ends.start(plan.pull, &plan.client)?;
    let mut seen = Seen::default();
    let mut last = ends.wait(&client, &mut seen)?;
    let own_seconds = last_number(&last.output, "seconds");
    if plan.server_ends
        && let Some(server) = &server
    {
        let end = ends.wait(server, &mut seen)?;
        last.at = last.at.max(end.at);
    }
    if plan.flush {
        let flush = ends.start(true, &format!("sync {}", bed.target))?;
        last.at = ends.wait(&flush, &mut seen)?.at;
    }
    if server.is_none() || plan.server_ends {
        ends.wait_until_empty()?;
    }
    let cpu_seconds = ends.source.cpu_seconds()? + ends.destination.cpu_seconds()?;
    drop(ends);
    Ok(Figures {
        wall_seconds: (last.at - start).as_secs_f64(),
        own_seconds,
        cpu_seconds,
        source_memory: seen.source_memory,
        destination_memory: seen.destination_memory,
        connections: seen.connections,
        holes_kept: if plan.no_copy { None } else { bed.verify()? },
    })
}

/// A line of shell that runs.
struct Running {
    line: String,
    pid: i32,
    end: Receiver<(Instant, std::io::Result<ExitStatus>)>,
    output: File,
    errors: File,
}

/// How it ended, when all was well.
struct Ended {
    at: Instant,
    output: String,
}

/// The most that was seen of each.
#[derive(Default)]
struct Seen {
    source_memory: u64,
    destination_memory: u64,
    connections: usize,
    samples: u32,
}

/// Both ends of one run; dropping it kills what is left of them.
struct Ends<'a> {
    bed: &'a Bed,
    limits: &'a Limits<'a>,
    source: Cgroup,
    destination: Cgroup,
    deadline: Instant,
}

impl Ends<'_> {
    /// Starts a line on the destination's host or the source's, in that end's control group.
    ///
    /// `nsenter`, because `ip netns exec` hides the control groups, which the script in place of
    /// ssh has to find.
    fn start(&self, on_destination: bool, line: &str) -> Result<Running, Failed> {
        let (host, group) = if on_destination {
            (self.bed.link.b(), &self.destination)
        } else {
            (self.bed.link.a(), &self.source)
        };
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut child = Command::new("sh")
            .args(["-c", "echo 0 >\"$1\" && exec nsenter --net=\"$2\" sh -c \"$3\"", "sh"])
            .arg(group.door())
            .arg(namespace(host))
            .arg(line)
            .current_dir(&self.bed.folder)
            .env("PATH", self.limits.path)
            .env("HOME", &self.bed.folder)
            .env("PEERS_DOOR", self.destination.door())
            .env("PEERS_NETNS", self.bed.link.b().name())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            // Ctrl-C is for this program alone, which then ends what it has started.
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id())?;
        let (tell, end) = channel();
        // Ends with the process, which does not outlive its control group.
        spawn(move || {
            let status = child.wait();
            let _ = tell.send((Instant::now(), status));
        });
        Ok(Running { line: line.to_owned(), pid, end, output, errors })
    }

    /// Waits for its end and watches both ends of the run meanwhile.
    fn wait(&self, running: &Running, seen: &mut Seen) -> Result<Ended, Failed> {
        loop {
            match running.end.recv_timeout(SAMPLE) {
                Ok((at, Ok(status))) if status.success() => {
                    return Ok(Ended { at, output: running.output()? });
                }
                Ok((_, status)) => return Err(running.failure(&status)),
                Err(RecvTimeoutError::Timeout) => {
                    self.go_on(&format!("'{}' does not end", running.line))?;
                    seen.look(self);
                }
                Err(RecvTimeoutError::Disconnected) => return Err("the waiting thread died".into()),
            }
        }
    }

    fn wait_until_it_listens(&self, server: &Running, port: u16) -> Result<(), Failed> {
        let end = Instant::now() + READY;
        while Instant::now() < end {
            if measure::listens(&measure::sockets(server.pid), port) {
                return Ok(());
            }
            if let Ok((_, status)) = server.end.try_recv() {
                return Err(server.failure(&status));
            }
            self.go_on("the server does not start")?;
            sleep(Duration::from_millis(10));
        }
        Err(format!("'{}' does not listen: {}", server.line, server.errors()).into())
    }

    /// A receiver that the client started may end a moment after it: its CPU time counts.
    fn wait_until_empty(&self) -> Result<(), Failed> {
        let end = Instant::now() + LINGER;
        while Instant::now() < end {
            if self.source.pids().is_empty() && self.destination.pids().is_empty() {
                return Ok(());
            }
            sleep(Duration::from_millis(5));
        }
        Err("a process is still there after the end".into())
    }

    fn go_on(&self, otherwise: &str) -> Result<(), Failed> {
        if self.limits.stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        if Instant::now() > self.deadline {
            return Err(format!("{otherwise} in {} s", self.limits.timeout.as_secs()).into());
        }
        Ok(())
    }
}

impl Running {
    fn output(&self) -> Result<String, Failed> {
        Ok(tail(&self.output)?)
    }

    fn errors(&self) -> String {
        let text = tail(&self.errors).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim().to_owned()
    }

    fn failure(&self, status: &std::io::Result<ExitStatus>) -> Failed {
        let program = self.line.split(' ').next().unwrap_or_default();
        match status {
            Ok(status) => format!("{program} ended with {status}: {}", self.errors()).into(),
            Err(error) => format!("cannot wait for {program}: {error}").into(),
        }
    }
}

impl Seen {
    fn look(&mut self, ends: &Ends<'_>) {
        self.source_memory = self.source_memory.max(ends.source.memory());
        self.destination_memory = self.destination_memory.max(ends.destination.memory());
        if self.samples.is_multiple_of(SAMPLES_PER_COUNT)
            && let (Some(pid), IpAddr::V4(address)) =
                (ends.source.pids().first(), ends.bed.link.a().address())
        {
            let count = measure::connections(&measure::sockets(*pid), address);
            self.connections = self.connections.max(count);
        }
        self.samples += 1;
    }
}

fn namespace(host: &Host) -> PathBuf {
    Path::new("/run/netns").join(host.name())
}

/// The end of what a process wrote, at most 64 KiB.
fn tail(mut file: &File) -> std::io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(64 << 10)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A number out of the JSON object in the last line, if that is one.
fn last_number(output: &str, name: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(output.lines().last()?).ok()?;
    value.get(name)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_may_tell_a_time() {
        assert_eq!(last_number("{\"a\":1}\n{\"seconds\":0.25}\n", "seconds"), Some(0.25));
        assert_eq!(last_number("{\"seconds\":0.25}\ndone\n", "seconds"), None);
        assert_eq!(last_number("", "seconds"), None);
    }
}
