//! Where the time goes: counters of every stage, read while the job runs and at its end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use lanes::meter::{Counter, cpu_now};
use proto::session::Totals;
pub use proto::telemetry::{Bottleneck, Snapshot};
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
    /// Image bytes that the destination had already.
    pub(crate) resumed_bytes: Counter,
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
            resumed_bytes: self.resumed_bytes.sum(),
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
