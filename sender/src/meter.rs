//! Where the time goes: counters of every stage, read while the job runs and at its end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use lanes::meter::{Counter, cpu_now};
use proto::session::Totals;
use proto::telemetry::{CpuTicks, ReceiverStages};

/// Counters of a running job; shared between its tasks and whoever shows progress.
#[derive(Debug, Default)]
pub struct Meter {
    /// Reads, from submission to completion.
    pub(crate) read: Counter,
    pub(crate) read_bytes: Counter,
    /// The reader waiting for a free buffer.
    pub(crate) buffer_wait: Counter,
    /// Zero scan and hashing.
    pub(crate) hash: Counter,
    /// Lanes with nothing to send.
    pub(crate) starved: Counter,
    /// Lanes held back by the limit that was set.
    pub(crate) limited: Counter,
    /// Lanes handing bytes to the network.
    pub(crate) send: Counter,
    pub(crate) wire_bytes: Counter,
    /// Image bytes accounted for: data acknowledged, and zeros as they were found.
    pub(crate) zero_bytes: Counter,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    first_read: Option<Instant>,
    cpu_then: CpuTicks,
    last_durable: Option<Instant>,
    totals: Totals,
    receiver: ReceiverStages,
}

/// The stage that limits a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// Reading the source.
    Read,
    /// The cores of the source host.
    SourceCpu,
    /// The cores of the destination host.
    DestinationCpu,
    /// The network.
    Network,
    /// Writing at the destination.
    Write,
    /// The limit that the user set.
    Limit,
}

impl Bottleneck {
    /// The word used in `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Bottleneck::Read => "read",
            Bottleneck::SourceCpu => "source-cpu",
            Bottleneck::DestinationCpu => "destination-cpu",
            Bottleneck::Network => "network",
            Bottleneck::Write => "write",
            Bottleneck::Limit => "limit",
        }
    }

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Bottleneck::Read => "source disk",
            Bottleneck::SourceCpu => "source CPU",
            Bottleneck::DestinationCpu => "destination CPU",
            Bottleneck::Network => "network",
            Bottleneck::Write => "destination disk",
            Bottleneck::Limit => "the limit that was set (--limit)",
        }
    }
}

/// The counters at one moment. Times are nanoseconds, summed over tasks; sizes are bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Reads.
    pub read_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// The reader waiting for a free buffer.
    pub buffer_wait_ns: u64,
    /// Scanning and hashing.
    pub hash_ns: u64,
    /// Lanes with nothing to send.
    pub starved_ns: u64,
    /// Lanes held back by the limit that was set.
    pub limited_ns: u64,
    /// Lanes sending.
    pub send_ns: u64,
    /// Headers and payload handed to the lanes (TLS adds about 0.15 %).
    pub wire_bytes: u64,
    /// Image bytes found to read as zero; they do not travel.
    pub zero_bytes: u64,
    /// Units and payload.
    pub totals: Totals,
    /// All cores of this host since the first read.
    pub cpu: CpuTicks,
    /// The other side's counters.
    pub receiver: ReceiverStages,
    /// From the first read to the last durable acknowledgement, or to now.
    pub elapsed: Duration,
}

impl Meter {
    pub(crate) fn reading_starts(&self) {
        self.with(|s| {
            if s.first_read.is_none() {
                (s.first_read, s.cpu_then) = (Some(Instant::now()), cpu_now());
            }
        });
    }

    pub(crate) fn set_totals(&self, totals: Totals) {
        self.with(|s| {
            if totals.durable > s.totals.durable {
                s.last_durable = Some(Instant::now());
            }
            s.totals = totals;
        });
    }

    pub(crate) fn set_receiver(&self, receiver: ReceiverStages) {
        self.with(|s| s.receiver = receiver);
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // The state is plain numbers: whatever a panicked holder left is as good as any.
        f(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Everything now. `ended`: measure the time to the last durable acknowledgement.
    pub fn snapshot(&self, ended: bool) -> Snapshot {
        let state = self.with(|s| *s);
        let elapsed = match (state.first_read, state.last_durable) {
            (Some(start), Some(end)) if ended => end - start,
            (Some(start), _) => start.elapsed(),
            _ => Duration::ZERO,
        };
        Snapshot {
            read_ns: self.read.sum(),
            read_bytes: self.read_bytes.sum(),
            buffer_wait_ns: self.buffer_wait.sum(),
            hash_ns: self.hash.sum(),
            starved_ns: self.starved.sum(),
            limited_ns: self.limited.sum(),
            send_ns: self.send.sum(),
            wire_bytes: self.wire_bytes.sum(),
            zero_bytes: self.zero_bytes.sum(),
            totals: state.totals,
            cpu: if state.first_read.is_some() {
                cpu_now().since(&state.cpu_then)
            } else {
                CpuTicks::default()
            },
            receiver: state.receiver,
            elapsed,
        }
    }
}

impl Snapshot {
    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        Snapshot {
            read_ns: self.read_ns - earlier.read_ns,
            read_bytes: self.read_bytes - earlier.read_bytes,
            buffer_wait_ns: self.buffer_wait_ns - earlier.buffer_wait_ns,
            hash_ns: self.hash_ns - earlier.hash_ns,
            starved_ns: self.starved_ns - earlier.starved_ns,
            limited_ns: self.limited_ns - earlier.limited_ns,
            send_ns: self.send_ns - earlier.send_ns,
            wire_bytes: self.wire_bytes - earlier.wire_bytes,
            zero_bytes: self.zero_bytes - earlier.zero_bytes,
            totals: self.totals,
            receiver: self.receiver.since(&earlier.receiver),
            cpu: self.cpu.since(&earlier.cpu),
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
        }
    }

    /// The stage that limits, by who waits for whom: lanes that starve wait for the source; lanes
    /// that send wait for the network, unless the receiver's lanes wait for the disk. A host
    /// without idle cores slows every stage, so the network is blamed only when both have some.
    /// `None` before anything was sent.
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        if self.starved_ns + self.limited_ns + self.send_ns == 0 {
            return None;
        }
        if self.limited_ns > self.starved_ns + self.send_ns {
            return Some(Bottleneck::Limit);
        }
        let receiver = &self.receiver;
        let busy = receiver.receive_wait_ns + receiver.hash_ns;
        if receiver.buffer_wait_ns > busy {
            return Some(Bottleneck::Write);
        }
        let reading = self.starved_ns > self.send_ns;
        Some(match (self.cpu.saturated(), receiver.cpu.saturated()) {
            (true, _) => Bottleneck::SourceCpu,
            (_, true) if !reading => Bottleneck::DestinationCpu,
            _ if reading && self.hash_ns > self.read_ns => Bottleneck::SourceCpu,
            _ if reading => Bottleneck::Read,
            _ => Bottleneck::Network,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_names_the_culprit() {
        let base = Snapshot { send_ns: 90, starved_ns: 10, read_ns: 5, ..Snapshot::default() };
        assert_eq!(Snapshot::default().bottleneck(), None);
        assert_eq!(base.bottleneck(), Some(Bottleneck::Network));
        let starved = Snapshot { send_ns: 10, starved_ns: 90, ..base };
        assert_eq!(starved.bottleneck(), Some(Bottleneck::Read));
        assert_eq!(Snapshot { hash_ns: 50, ..starved }.bottleneck(), Some(Bottleneck::SourceCpu));
        assert_eq!(Snapshot { limited_ns: 101, ..base }.bottleneck(), Some(Bottleneck::Limit));
        let full = CpuTicks { busy: 100, total: 100, own: 50 };
        assert_eq!(Snapshot { cpu: full, ..base }.bottleneck(), Some(Bottleneck::SourceCpu));
        let receiver = ReceiverStages { cpu: full, ..ReceiverStages::default() };
        assert_eq!(Snapshot { receiver, ..base }.bottleneck(), Some(Bottleneck::DestinationCpu));
        let receiver =
            ReceiverStages { buffer_wait_ns: 80, receive_wait_ns: 10, ..ReceiverStages::default() };
        assert_eq!(Snapshot { receiver, ..base }.bottleneck(), Some(Bottleneck::Write));
    }
}
