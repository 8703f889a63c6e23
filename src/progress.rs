//! Progress while a job runs: a bar for people, lines for logs, objects for machines.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sender::meter::Snapshot;

use crate::cli::Send;
use crate::report::{Report, bytes, rate};

const REDRAW: Duration = Duration::from_millis(200);
/// The rate shown is that of the last few seconds.
const SHOWN_OVER: Duration = Duration::from_secs(3);

/// The display of one job.
pub struct Progress {
    meter: Box<dyn Fn() -> Snapshot>,
    total: u64,
    streams: u32,
    bar: Option<ProgressBar>,
    interval: Option<Duration>,
    furthest: Cell<u64>,
    /// There is a job: before that, there is no progress to speak of.
    begun: Cell<bool>,
}

/// How far a job is.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Image bytes accounted for: data that arrived, and zeros. Never goes back, never above `total`.
    pub done: u64,
    /// Image bytes in all.
    pub total: u64,
}

impl Progress {
    /// A bar only where somebody looks; lines only when asked for. `meter`: the counters now.
    pub fn new(args: &Send, total: u64, meter: impl Fn() -> Snapshot + 'static) -> Progress {
        let wanted = !args.quiet && !args.json && args.log_interval.is_none();
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:20} {percent:>3}%  {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let interval = args.log_interval.filter(|_| !args.quiet || args.json);
        Progress {
            meter: Box::new(meter),
            total,
            streams: args.streams,
            bar,
            interval,
            furthest: Cell::new(0),
            begun: Cell::new(false),
        }
    }

    /// The job was accepted; lines may be printed from now on.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// Prints something without tearing the bar.
    pub fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn position(&self, now: &Snapshot) -> Position {
        let done = now
            .totals
            .written
            .saturating_add(now.zero_bytes)
            .saturating_add(now.resumed_bytes)
            .min(self.total)
            .max(self.furthest.get());
        self.furthest.set(done);
        Position { done, total: self.total }
    }

    fn redraw(&self, before: &Snapshot, now: &Snapshot) {
        let Some(bar) = &self.bar else { return };
        let at = self.position(now);
        bar.set_position(at.done);
        let span = now.since(before);
        let speed = per_second(now.totals.written.saturating_sub(before.totals.written), span.elapsed);
        let left = at.total - at.done;
        let pace = per_second(at.done, now.elapsed);
        let eta = if pace > 0.0 && left > 0 {
            format!("  {} left", clock(Duration::from_secs_f64((left as f64 / pace).min(1e7))))
        } else {
            String::new()
        };
        let slowest = span.bottleneck().map_or(String::new(), |b| format!("  slowest: {}", b.describe()));
        // The end is cut off where the terminal is narrow, so what matters comes first.
        bar.set_message(format!(
            "{}{eta}{slowest}  {} of {}, {} sent",
            rate(speed * 8.0),
            bytes(at.done),
            bytes(at.total),
            bytes(now.wire_bytes),
        ));
    }
}

fn per_second(bytes: u64, over: Duration) -> f64 {
    if over.is_zero() { 0.0 } else { bytes as f64 / over.as_secs_f64() }
}

fn clock(d: Duration) -> String {
    let s = d.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

/// Runs `work` while showing how it goes.
pub async fn beside<T>(progress: &Progress, report: &Report, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut recent: Vec<(Instant, Snapshot)> = vec![(Instant::now(), (progress.meter)())];
    let mut last_line = recent[0].1;
    let mut next_line = progress.interval.map(|every| Instant::now() + every);
    loop {
        let wake = match (next_line, &progress.bar) {
            (Some(at), _) => at.saturating_duration_since(Instant::now()),
            (None, Some(_)) => REDRAW,
            (None, None) => return work.await,
        };
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(wake) => {}
        }
        let now = (progress.meter)();
        recent.retain(|(at, _)| at.elapsed() < SHOWN_OVER);
        progress.redraw(recent.first().map_or(&Snapshot::default(), |(_, s)| s), &now);
        recent.push((Instant::now(), now));
        if let (Some(at), Some(every)) = (next_line, progress.interval)
            && Instant::now() >= at
        {
            if progress.begun.get() {
                report.interval(&progress.position(&now), &now, &now.since(&last_line), progress.streams);
            }
            last_line = now;
            next_line = Some(at + every);
        }
    }
}
