//! Where a host's time goes.

use serde::{Deserialize, Serialize};

/// Nanoseconds that the receiver's stages spent, summed over lanes, bytes, and its host's cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiverStages {
    /// Lanes waiting for bytes from the network.
    pub receive_wait_ns: u64,
    /// Lanes waiting for a free buffer, that is for the disk.
    pub buffer_wait_ns: u64,
    /// Verifying.
    pub hash_ns: u64,
    /// Writes, from submission to completion.
    pub write_ns: u64,
    /// Flushes.
    pub flush_ns: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// All cores of the receiver's host since the job began.
    pub cpu: CpuTicks,
}

impl ReceiverStages {
    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ReceiverStages) -> ReceiverStages {
        ReceiverStages {
            receive_wait_ns: self.receive_wait_ns.saturating_sub(earlier.receive_wait_ns),
            buffer_wait_ns: self.buffer_wait_ns.saturating_sub(earlier.buffer_wait_ns),
            hash_ns: self.hash_ns.saturating_sub(earlier.hash_ns),
            write_ns: self.write_ns.saturating_sub(earlier.write_ns),
            flush_ns: self.flush_ns.saturating_sub(earlier.flush_ns),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            cpu: self.cpu.since(&earlier.cpu),
        }
    }
}

/// Time of all cores of a host, and this process's part of it, in the kernel's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CpuTicks {
    /// Not idle.
    pub busy: u64,
    /// Idle and not.
    pub total: u64,
    /// Spent by this process.
    pub own: u64,
}

impl CpuTicks {
    /// From the texts of /proc/stat and /proc/self/stat (proc(5)); zero what cannot be read.
    pub fn parse(stat: &str, self_stat: &str) -> CpuTicks {
        let line = stat.lines().find_map(|l| l.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user already.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|t| t.parse().ok()).collect();
        let total: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        // The name in parentheses may hold anything; utime and stime are the 12th and 13th behind it.
        let behind = self_stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let own = behind.split_whitespace().skip(11).take(2).map_while(|t| t.parse::<u64>().ok()).sum();
        CpuTicks { busy: total - idle, total, own }
    }

    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &CpuTicks) -> CpuTicks {
        CpuTicks {
            busy: self.busy.saturating_sub(earlier.busy),
            total: self.total.saturating_sub(earlier.total),
            own: self.own.saturating_sub(earlier.own),
        }
    }

    /// Whether this process is held up by the cores: they have next to no idle time (over 95 %),
    /// it wants a good part of them itself (a quarter: with less it would wait for something else
    /// most of the time), and it was watched long enough to be sure.
    pub fn saturated(&self) -> bool {
        self.total >= 50 && self.busy * 100 > self.total * 95 && self.own * 4 >= self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat() {
        let text = "cpu  100 5 45 800 50 0 0 0 7 0\ncpu0 1 2 3 4\n";
        let own = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0";
        assert_eq!(CpuTicks::parse(text, own), CpuTicks { busy: 150, total: 1000, own: 42 });
        assert_eq!(CpuTicks::parse("garbage", "more"), CpuTicks::default());
        assert!(!CpuTicks { busy: 49, total: 49, own: 49 }.saturated());
        assert!(CpuTicks { busy: 97, total: 100, own: 40 }.saturated());
        assert!(!CpuTicks { busy: 97, total: 100, own: 10 }.saturated(), "others keep it busy");
        assert!(!CpuTicks { busy: 95, total: 100, own: 90 }.saturated());
    }
}
