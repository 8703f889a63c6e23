//! How much memory both ends of a job have at most.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use testbed::net::Host;

use crate::ferry::Failed;

/// Between two looks. The kernel keeps the peak itself: only the last moments may be missed.
const INTERVAL: Duration = Duration::from_millis(10);

/// The most memory that each end had at once, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Of the sender.
    pub sender: u64,
    /// Of the receiver.
    pub receiver: u64,
}

/// Runs a sender to its end and watches it, and what runs as `program` on the receiving host.
///
/// # Errors
/// When it cannot be started, or nobody was seen.
pub fn watched(sender: &mut Command, there: &Host, program: &Path) -> Result<(Output, Peaks), Failed> {
    let mut child = sender.stdout(Stdio::piped()).spawn()?;
    let mut peaks = Peaks::default();
    let mut receivers = Vec::new();
    while child.try_wait()?.is_none() {
        // The one that starts, and the one that it leaves behind when it detaches.
        if receivers.iter().all(|pid| peak(*pid) == 0) {
            receivers = running(there, program)?;
        }
        peaks.sender = peaks.sender.max(peak(child.id()));
        peaks.receiver = receivers.iter().map(|pid| peak(*pid)).fold(peaks.receiver, u64::max);
        std::thread::sleep(INTERVAL);
    }
    if peaks.sender == 0 || peaks.receiver == 0 {
        return Err("one of the ends was never seen".into());
    }
    Ok((child.wait_with_output()?, peaks))
}

/// The most memory that a process had until now, bytes; 0 when it is gone.
fn peak(pid: u32) -> u64 {
    peak_in(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
}

/// The most memory that a process ever had, bytes, from its `/proc/PID/status` (`proc_pid_status(5)`);
/// 0 when there is none.
pub fn peak_in(status: &str) -> u64 {
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        // "VmHWM:     1234 kB"; huge pages of the reserved pool are not part of it.
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    };
    (field("VmHWM:") + field("HugetlbPages:")) << 10
}

/// The processes of a host that run `program`.
fn running(host: &Host, program: &Path) -> Result<Vec<u32>, Failed> {
    let listed = Command::new("ip").args(["netns", "pids", host.name()]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let pids = listed.lines().filter_map(|line| line.trim().parse().ok());
    let is_it = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    Ok(pids.filter(is_it).collect())
}
