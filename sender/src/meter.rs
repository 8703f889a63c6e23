//! Where the time goes: counters of every stage, read while the job runs and at its end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use proto::control::ReceiverStages;
use proto::session::Totals;

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn since(&self, start: Instant) {
        self.add(nanos(start.elapsed()));
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

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
    last_durable: Option<Instant>,
    totals: Totals,
    receiver: ReceiverStages,
}

/// The stage that limits a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// Reading the source.
    Read,
    /// Hashing and scanning on the sender's cores.
    Cpu,
    /// The network.
    Network,
    /// Writing at the destination.
    Write,
}

impl Bottleneck {
    /// The word used in `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Bottleneck::Read => "read",
            Bottleneck::Cpu => "cpu",
            Bottleneck::Network => "network",
            Bottleneck::Write => "write",
        }
    }

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Bottleneck::Read => "source disk",
            Bottleneck::Cpu => "hashing (source CPU)",
            Bottleneck::Network => "network",
            Bottleneck::Write => "destination disk",
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
    /// Lanes sending.
    pub send_ns: u64,
    /// Headers and payload handed to the lanes (TLS adds about 0.15 %).
    pub wire_bytes: u64,
    /// Image bytes found to read as zero; they do not travel.
    pub zero_bytes: u64,
    /// Units and payload.
    pub totals: Totals,
    /// The other side's counters.
    pub receiver: ReceiverStages,
    /// From the first read to the last durable acknowledgement, or to now.
    pub elapsed: Duration,
}

impl Meter {
    pub(crate) fn reading_starts(&self) {
        self.with(|s| *s.first_read.get_or_insert_with(Instant::now));
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
            read_ns: self.read.get(),
            read_bytes: self.read_bytes.get(),
            buffer_wait_ns: self.buffer_wait.get(),
            hash_ns: self.hash.get(),
            starved_ns: self.starved.get(),
            send_ns: self.send.get(),
            wire_bytes: self.wire_bytes.get(),
            zero_bytes: self.zero_bytes.get(),
            totals: state.totals,
            receiver: state.receiver,
            elapsed,
        }
    }
}

impl Snapshot {
    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let (r, e) = (&self.receiver, &earlier.receiver);
        Snapshot {
            read_ns: self.read_ns - earlier.read_ns,
            read_bytes: self.read_bytes - earlier.read_bytes,
            buffer_wait_ns: self.buffer_wait_ns - earlier.buffer_wait_ns,
            hash_ns: self.hash_ns - earlier.hash_ns,
            starved_ns: self.starved_ns - earlier.starved_ns,
            send_ns: self.send_ns - earlier.send_ns,
            wire_bytes: self.wire_bytes - earlier.wire_bytes,
            zero_bytes: self.zero_bytes - earlier.zero_bytes,
            totals: self.totals,
            receiver: ReceiverStages {
                receive_wait_ns: r.receive_wait_ns.saturating_sub(e.receive_wait_ns),
                buffer_wait_ns: r.buffer_wait_ns.saturating_sub(e.buffer_wait_ns),
                hash_ns: r.hash_ns.saturating_sub(e.hash_ns),
                write_ns: r.write_ns.saturating_sub(e.write_ns),
                flush_ns: r.flush_ns.saturating_sub(e.flush_ns),
                received_bytes: r.received_bytes.saturating_sub(e.received_bytes),
                written_bytes: r.written_bytes.saturating_sub(e.written_bytes),
            },
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
        }
    }

    /// The stage that limits, by who waits for whom: lanes that starve wait for the source; lanes
    /// that send wait for the network, unless the receiver's lanes wait for the disk; what is
    /// flushed after the last byte is the disk's time too. `None` before anything was sent.
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        let lane_ns = self.starved_ns + self.send_ns;
        if lane_ns == 0 {
            return None;
        }
        let receiver = &self.receiver;
        let inside = receiver.buffer_wait_ns + receiver.receive_wait_ns + receiver.hash_ns;
        let disk_share = receiver.buffer_wait_ns as f64 / inside.max(1) as f64;
        if disk_share > 0.5 {
            return Some(Bottleneck::Write);
        }
        if self.starved_ns > self.send_ns {
            let hashing = self.hash_ns > self.read_ns;
            return Some(if hashing { Bottleneck::Cpu } else { Bottleneck::Read });
        }
        Some(Bottleneck::Network)
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
        assert_eq!(Snapshot { hash_ns: 50, ..starved }.bottleneck(), Some(Bottleneck::Cpu));
        let receiver =
            ReceiverStages { buffer_wait_ns: 80, receive_wait_ns: 10, ..ReceiverStages::default() };
        assert_eq!(Snapshot { receiver, ..base }.bottleneck(), Some(Bottleneck::Write));
    }
}
