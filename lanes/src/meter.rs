//! Counters of where time goes, for both ends of a lane.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use proto::telemetry::CpuTicks;

/// A sum of nanoseconds or bytes that many tasks add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds bytes, or nanoseconds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Adds the nanoseconds since `start`.
    pub fn since(&self, start: Instant) {
        self.took(start.elapsed());
    }

    /// Adds the nanoseconds of `time`.
    pub fn took(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The sum.
    pub fn sum(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The cores of this host, and what this process took of them, up to now. Zero where /proc cannot
/// be read: then nothing is ever blamed on the cores.
pub fn cpu_now() -> CpuTicks {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    CpuTicks::parse(&read("/proc/stat"), &read("/proc/self/stat"))
}
