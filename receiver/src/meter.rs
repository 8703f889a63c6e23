//! Where the receiver's time goes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use proto::telemetry::{CpuTicks, ReceiverStages};

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
#[derive(Debug)]
pub(crate) struct Meter {
    cpu_then: CpuTicks,
    pub(crate) receive_wait: Counter,
    pub(crate) buffer_wait: Counter,
    pub(crate) hash: Counter,
    pub(crate) write: Counter,
    pub(crate) flush: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) written_bytes: Counter,
}

fn cpu_now() -> CpuTicks {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    CpuTicks::parse(&read("/proc/stat"), &read("/proc/self/stat"))
}

impl Meter {
    /// All zero, from now on.
    pub(crate) fn new() -> Meter {
        Meter {
            cpu_then: cpu_now(),
            receive_wait: Counter::default(),
            buffer_wait: Counter::default(),
            hash: Counter::default(),
            write: Counter::default(),
            flush: Counter::default(),
            received_bytes: Counter::default(),
            written_bytes: Counter::default(),
        }
    }

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
            cpu: cpu_now().since(&self.cpu_then),
        }
    }
}
