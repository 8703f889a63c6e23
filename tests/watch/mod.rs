//! A send in flight: what it says while it runs, and its two processes.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // every test file uses its part of it

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ferry::{self, Ferry, Sent};

/// What does not happen within this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// A running `vmferry send`. It is ended when dropped.
pub struct Flight {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Flight {
    pub fn start(ferry: &Ferry, to: impl AsRef<Path>) -> Flight {
        let mut command = ferry.command(to);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (say, lines) = mpsc::channel();
        thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| say.send(line.unwrap())));
        let complaints = thread::spawn(move || {
            let mut said = Vec::new();
            stderr.read_to_end(&mut said).unwrap();
            String::from_utf8_lossy(&said).into_owned()
        });
        Flight { child, lines, said: Vec::new(), stderr: Some(complaints) }
    }

    /// The process of the sender, unless it runs below another command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next object for which `wanted` holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("never said: {what}; but {:?}", self.said);
            };
            let object = serde_json::from_str(&line).unwrap();
            self.said.push(line);
            if wanted(&object) {
                return object;
            }
        }
    }

    /// The job is accepted: the address that the control connection goes to.
    pub fn started(&mut self) -> std::net::SocketAddr {
        let started = self.until("started", |object| object["event"] == "started");
        started["peer"].as_str().unwrap().parse().unwrap()
    }

    /// Data is on its way; needs `--log-interval`.
    pub fn moving(&mut self) -> Value {
        self.until("progress", |object| {
            object["event"] == "progress" && object["done_bytes"].as_u64().unwrap() > 0
        })
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub fn land(mut self) -> Sent {
        let exit = eventually("the sender ends", || self.child.try_wait().unwrap());
        self.said.extend(self.lines.iter());
        let stdout = self.said.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Sent { exit: exit.code().unwrap_or(-1), stdout, stderr }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Marks receivers in their environment, so that a test finds its own among all processes.
pub struct Mark(String);

impl Mark {
    pub fn new() -> Mark {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Mark(format!("VMFERRY_TEST_MARK={}-{number}", std::process::id()))
    }

    /// How to call a command so that it, and what it starts, bears the mark.
    pub fn on(&self, command: &str) -> String {
        format!("env {} {command}", self.0)
    }

    /// All that bears the mark and is alive.
    pub fn bearers(&self) -> Vec<u32> {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| has_word(*pid, "environ", &self.0)).collect()
    }

    /// The receivers among them.
    pub fn receivers(&self) -> Vec<u32> {
        let vmferry = Path::new(ferry::vmferry());
        let is_vmferry =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == vmferry);
        self.bearers()
            .into_iter()
            .filter(is_vmferry)
            .filter(|pid| has_word(*pid, "cmdline", "receive"))
            .collect()
    }
}

fn has_word(pid: u32, file: &str, word: &str) -> bool {
    // A process that ended meanwhile has nothing to read.
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
}

/// Runs a tool of the system and returns what it prints; it must succeed.
#[track_caller]
pub fn tool(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
