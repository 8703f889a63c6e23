//! One run of the command, and what is done to it meanwhile.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testbed::faults::Faults;
use testbed::images::content::Numbers;
use testbed::net::Link;

use super::Bench;
use super::place::Place;
use super::plan::{Plan, one_of};
use crate::cli::Failure;

/// An attempt that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);
/// Processes are given so long to end by themselves.
const LETTING_GO: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(5);

/// What is done to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillSender,
    KillReceiver,
    InterruptSender,
    TerminateSender,
    TerminateReceiver,
    StopSender,
    StopReceiver,
    CutLink,
    DropFlow,
    ResetFlows,
    FailWrites,
    FailFlushes,
    FailFolderFlushes,
    FillDisk,
    SlowWrites,
    SlowFlushes,
    CutPower,
}

use Fault::*;

/// What is there twice is twice as likely.
const ALL: [Fault; 21] = [
    KillSender,
    KillReceiver,
    InterruptSender,
    TerminateSender,
    TerminateReceiver,
    StopSender,
    StopReceiver,
    CutLink,
    DropFlow,
    ResetFlows,
    FailWrites,
    FailFlushes,
    FailFolderFlushes,
    FillDisk,
    SlowWrites,
    SlowFlushes,
    CutPower,
    CutPower,
    CutPower,
    FailFlushes,
    KillReceiver,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            KillSender => "kill -9 sender",
            KillReceiver => "kill -9 receiver",
            InterruptSender => "SIGINT sender",
            TerminateSender => "SIGTERM sender",
            TerminateReceiver => "SIGTERM receiver",
            StopSender => "SIGSTOP sender",
            StopReceiver => "SIGSTOP receiver",
            CutLink => "link cut",
            DropFlow => "flow dropped",
            ResetFlows => "RST",
            FailWrites => "write EIO",
            FailFlushes => "fsync EIO",
            FailFolderFlushes => "folder fsync EIO",
            FillDisk => "ENOSPC",
            SlowWrites => "slow writes",
            SlowFlushes => "slow fsync",
            CutPower => "power loss",
        }
    }
}

/// How an attempt ended.
pub struct Ended {
    /// Its exit code, -1 after a signal.
    pub exit: i32,
    /// What it said.
    pub said: String,
    /// What was done to it.
    pub faults: Vec<&'static str>,
    /// It had to be ended.
    pub hung: bool,
    /// Processes that did not end by themselves.
    pub strays: Vec<u32>,
}

/// One run of the command.
pub struct Attempt<'a> {
    place: &'a mut Place,
    link: &'a Link,
    sender: Child,
    begun: Instant,
    /// To go on, when it is time.
    stopped: Vec<(Duration, u32)>,
    /// The link is mended, when it is time.
    cut: Option<Duration>,
    done: Vec<&'static str>,
}

/// Runs the command once, disturbed by `count` faults.
pub fn run(
    bench: &Bench,
    plan: &Plan,
    place: &mut Place,
    link: &Link,
    count: u64,
    more: &[&str],
    dice: &mut Numbers,
) -> Result<Ended, Failure> {
    let output = place.folder().join("output");
    let vmferry = place.vmferry.to_str().ok_or("a path that is no text")?.to_owned();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", link.a().name(), &vmferry, "send"]);
    command.args(&plan.options).args(more);
    command.args(place.images.iter().map(|image| &image.path));
    command.arg(format!("there:{}/", place.there()?.display()));
    command.args(["--rsh", &format!("{} local-shell --netns {}", bench.testbed.display(), link.b().name())]);
    command.args(["--remote-path", &vmferry]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&output)?);
    let expected = u64::try_from(plan.expected().as_millis())?;
    let mut faults: Vec<(Duration, Fault)> =
        (0..count).map(|_| (Duration::from_millis(dice.below(expected)), one_of(dice, &ALL))).collect();
    faults.sort_by_key(|(at, _)| *at);
    let sender = command.spawn()?;
    let (stopped, cut, done) = (Vec::new(), None, Vec::new());
    let mut attempt = Attempt { place, link, sender, begun: Instant::now(), stopped, cut, done };
    let (exit, hung) = attempt.watch(bench, faults, dice)?;
    attempt.mend()?;
    let strays = attempt.strays();
    let faults = std::mem::take(&mut attempt.done);
    drop(attempt);
    Ok(Ended { exit, said: fs::read_to_string(output)?, faults, hung, strays })
}

impl Attempt<'_> {
    /// Does what is planned until the command ends. Its exit code, and whether it hung.
    fn watch(
        &mut self,
        bench: &Bench,
        faults: Vec<(Duration, Fault)>,
        dice: &mut Numbers,
    ) -> Result<(i32, bool), Failure> {
        let mut faults = faults.into_iter().peekable();
        loop {
            if let Some(status) = self.sender.try_wait()? {
                return Ok((status.code().unwrap_or(-1), false));
            }
            let now = self.begun.elapsed();
            if let Some((_, fault)) = faults.next_if(|(at, _)| *at <= now)
                && self.inject(fault, now, dice)?
            {
                bench.report.fault(fault.name());
                self.done.push(fault.name());
            }
            for (_, pid) in self.stopped.extract_if(.., |(until, _)| *until <= now) {
                signal(pid, Signal::CONT);
            }
            if self.cut.take_if(|until| *until <= now).is_some() {
                self.link.mend()?;
            }
            if now > HANG {
                self.sender.kill()?;
                self.sender.wait()?;
                return Ok((-1, true));
            }
            sleep(TICK);
        }
    }

    /// Does it; false where it cannot be done, now or at all.
    fn inject(&mut self, fault: Fault, now: Duration, dice: &mut Numbers) -> Result<bool, Failure> {
        let sender = self.sender.id();
        let receivers = self.place.processes(true);
        let later = now + Duration::from_millis(300 + dice.below(5000));
        let slow = Duration::from_millis(5 + dice.below(100));
        let to_sender = |with| {
            signal(sender, with);
            Ok(true)
        };
        let to_receiver = |with| {
            receivers.iter().for_each(|pid| signal(*pid, with));
            Ok(!receivers.is_empty())
        };
        let fine = Faults::default;
        match fault {
            KillSender => to_sender(Signal::KILL),
            InterruptSender => to_sender(Signal::INT),
            TerminateSender => to_sender(Signal::TERM),
            KillReceiver => to_receiver(Signal::KILL),
            TerminateReceiver => to_receiver(Signal::TERM),
            StopSender => {
                self.stopped.push((later, sender));
                to_sender(Signal::STOP)
            }
            StopReceiver => {
                self.stopped.extend(receivers.iter().map(|pid| (later, *pid)));
                to_receiver(Signal::STOP)
            }
            CutLink => {
                self.cut = Some(later);
                self.link.cut()?;
                Ok(true)
            }
            ResetFlows => {
                self.cut = Some(later);
                self.link.reset()?;
                Ok(true)
            }
            DropFlow => {
                let flows = self.link.flows()?;
                if flows.is_empty() {
                    return Ok(false);
                }
                let (a, b) = one_of(dice, &flows);
                self.cut = Some(later);
                self.link.cut_flow(a, b)?;
                Ok(true)
            }
            FailWrites => {
                let at = dice.below(16 << 20);
                Ok(self.place.disk.set(Faults { write_error: Some(at..at + 4096), ..fine() }))
            }
            FailFlushes => Ok(self.place.disk.set(Faults { failing_fsyncs: 1, ..fine() })),
            FailFolderFlushes => Ok(self.place.disk.set(Faults { failing_folder_fsyncs: 1, ..fine() })),
            FillDisk => Ok(self.place.disk.set(Faults { space: Some(dice.below(8 << 20)), ..fine() })),
            SlowWrites => Ok(self.place.disk.set(Faults { slow_writes: slow / 4, ..fine() })),
            SlowFlushes => Ok(self.place.disk.set(Faults { slow_fsyncs: slow * 10, ..fine() })),
            CutPower if receivers.is_empty() || !self.place.disk.can_lose_power() => Ok(false),
            CutPower => {
                self.end(&receivers);
                self.place.disk.power_loss(dice.any())
            }
        }
    }

    /// Everything works again.
    fn mend(&mut self) -> Result<(), Failure> {
        for (_, pid) in self.stopped.drain(..) {
            signal(pid, Signal::CONT);
        }
        if self.cut.take().is_some() {
            self.link.mend()?;
        }
        self.place.disk.set(Faults::default());
        Ok(())
    }

    /// Kills receivers with their host.
    fn end(&self, pids: &[u32]) {
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        let begun = Instant::now();
        while !self.place.processes(true).is_empty() && begun.elapsed() < LETTING_GO {
            sleep(TICK);
        }
    }

    /// Waits for all processes to end; those that do not are killed and returned.
    fn strays(&self) -> Vec<u32> {
        let begun = Instant::now();
        let mut left = self.place.processes(false);
        while !left.is_empty() && begun.elapsed() < LETTING_GO {
            sleep(TICK);
            left = self.place.processes(false);
        }
        self.end(&left);
        left
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // Only where the test bed failed is anything left to do.
        let _ = self.mend();
        let _ = self.sender.kill();
        let _ = self.sender.wait();
    }
}

/// It may have ended meanwhile.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
