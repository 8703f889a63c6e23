//! A job seen from outside: its processes, and what the system's tools say.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // every test file uses its part of it

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::ferry;

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
