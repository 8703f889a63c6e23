//! Where the time goes: of a host, and of a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::session::Totals;

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
        let [busy, total, own] = [self.busy, self.total, self.own].map(u128::from);
        total >= 50 && busy * 100 > total * 95 && own * 4 >= total
    }
}

/// The stage that limits a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// The counters of a sender at one moment. Times are nanoseconds, summed over tasks; sizes are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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
    /// Image bytes that the destination has since an earlier attempt; they neither travel nor are read.
    pub resumed_bytes: u64,
    /// Units and payload.
    pub totals: Totals,
    /// All cores of this host since the first read.
    pub cpu: CpuTicks,
    /// The other side's counters.
    pub receiver: ReceiverStages,
    /// From the first read to the last durable acknowledgement, or to now.
    pub elapsed: Duration,
}

impl Snapshot {
    /// What happened since `earlier`. Both may come from a peer: counters that go back stand still.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        Snapshot {
            read_ns: self.read_ns.saturating_sub(earlier.read_ns),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            buffer_wait_ns: self.buffer_wait_ns.saturating_sub(earlier.buffer_wait_ns),
            hash_ns: self.hash_ns.saturating_sub(earlier.hash_ns),
            starved_ns: self.starved_ns.saturating_sub(earlier.starved_ns),
            limited_ns: self.limited_ns.saturating_sub(earlier.limited_ns),
            send_ns: self.send_ns.saturating_sub(earlier.send_ns),
            wire_bytes: self.wire_bytes.saturating_sub(earlier.wire_bytes),
            zero_bytes: self.zero_bytes.saturating_sub(earlier.zero_bytes),
            resumed_bytes: self.resumed_bytes.saturating_sub(earlier.resumed_bytes),
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
        if (self.starved_ns, self.limited_ns, self.send_ns) == (0, 0, 0) {
            return None;
        }
        if self.limited_ns > self.starved_ns.saturating_add(self.send_ns) {
            return Some(Bottleneck::Limit);
        }
        let receiver = &self.receiver;
        let busy = receiver.receive_wait_ns.saturating_add(receiver.hash_ns);
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
