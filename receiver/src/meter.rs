//! Where the receiver's time goes.

use lanes::meter::{Counter, cpu_now};
use proto::telemetry::{CpuTicks, ReceiverStages};

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
        ReceiverStages {
            receive_wait_ns: self.receive_wait.sum(),
            buffer_wait_ns: self.buffer_wait.sum(),
            hash_ns: self.hash.sum(),
            write_ns: self.write.sum(),
            flush_ns: self.flush.sum(),
            received_bytes: self.received_bytes.sum(),
            written_bytes: self.written_bytes.sum(),
            cpu: cpu_now().since(&self.cpu_then),
        }
    }
}
