//! Where the receiver's time goes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use proto::control::ReceiverStages;

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn since(&self, start: Instant) {
        self.add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

/// All counters of a job.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) receive_wait: Counter,
    pub(crate) buffer_wait: Counter,
    pub(crate) hash: Counter,
    pub(crate) write: Counter,
    pub(crate) flush: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) written_bytes: Counter,
}

impl Meter {
    pub(crate) fn stages(&self) -> ReceiverStages {
        let get = |c: &Counter| c.0.load(Relaxed);
        ReceiverStages {
            receive_wait_ns: get(&self.receive_wait),
            buffer_wait_ns: get(&self.buffer_wait),
            hash_ns: get(&self.hash),
            write_ns: get(&self.write),
            flush_ns: get(&self.flush),
            received_bytes: get(&self.received_bytes),
            written_bytes: get(&self.written_bytes),
        }
    }
}
