//! Rates of a path: HTB with one class per hashed flow.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Host;
use crate::error::{Error, Result};
use crate::run::{run, run_with_input};

/// Classes that flows are hashed into.
const CLASSES: u32 = 256;
/// Minor number of the first of them; HTB's own parent class has 1.
const FIRST: u32 = 0x10;
/// A segmentation-offload packet (64 KiB) and its headers must fit in a burst.
const PACKET: u64 = 70_000;
/// Rate of the parent when only flows are limited: more than the machine has.
const UNLIMITED: Rate = Rate(100_000_000_000);

/// A rate in bits per second, written like `4950mbit` or `1gbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// `number` million bits per second.
    pub const fn mbit(number: u64) -> Self {
        Self(number * 1_000_000)
    }

    /// Bytes in one millisecond and one whole packet.
    fn burst(self) -> u64 {
        self.0 / 8000 + PACKET
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}bit", self.0)
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let units = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];
        units
            .iter()
            .find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)))
            .and_then(|(number, factor)| number.parse::<u64>().ok()?.checked_mul(*factor))
            .filter(|bits| *bits > 0)
            .map(Self)
            .ok_or_else(|| Error::Invalid(format!("`{text}` is no rate: write 4950mbit or 1gbit")))
    }
}

/// Rates of each direction of a path; HTB counts whole packets with headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// All flows together.
    pub total: Option<Rate>,
    /// Each TCP connection and each UDP socket pair.
    pub flow: Option<Rate>,
}

impl Shape {
    /// Both rates in million bits per second.
    pub const fn mbit(total: u64, flow: u64) -> Self {
        Self { total: Some(Rate::mbit(total)), flow: Some(Rate::mbit(flow)) }
    }
}

/// Gives the device `shape` for what it sends, in place of what it had.
pub(super) fn apply(host: &Host, device: &str, shape: Shape) -> Result<()> {
    let present = run(host.command("tc").args(["qdisc", "show", "dev", device, "root"]))?;
    let mut batch = String::new();
    if present.contains("htb") {
        batch.push_str(&format!("qdisc del dev {device} root\n"));
    }
    batch.push_str(&script(device, shape));
    if batch.is_empty() {
        return Ok(());
    }
    run_with_input(host.command("tc").args(["-batch", "-"]), &batch).map(drop).map_err(explain)
}

/// A kernel without HTB or without the classifier says only "not found".
fn explain(error: Error) -> Error {
    match error {
        Error::Command { stderr, .. } if stderr.contains("No such file or directory") => Error::Missing {
            what: format!("traffic shaping in the kernel ({stderr})"),
            cure: "run `modprobe -a sch_htb cls_bpf`".into(),
        },
        other => other,
    }
}

/// The `tc` commands for an unshaped device.
fn script(device: &str, shape: Shape) -> String {
    let Shape { total, flow } = shape;
    if total.is_none() && flow.is_none() {
        return String::new();
    }
    let total = total.unwrap_or(UNLIMITED);
    let class = |parent: &str, minor: u32, rate: Rate, ceil: Rate, quantum: u64| {
        let burst = ceil.burst();
        format!(
            "class add dev {device} parent 1:{parent} classid 1:{minor:x} htb \
             rate {rate} ceil {ceil} burst {burst} cburst {burst} quantum {quantum}\n"
        )
    };
    // What no filter matches (ARP) takes the first class.
    let mut batch = format!("qdisc add dev {device} root handle 1: htb default {FIRST:x}\n");
    let Some(flow) = flow else {
        batch.push_str(&class("", FIRST, total, total, 2 * PACKET));
        return batch;
    };
    batch.push_str(&class("", 1, total, total, 2 * PACKET));
    // Equal small shares, so that no flow starves; each may borrow up to its own rate.
    let share = Rate((total.0 / u64::from(CLASSES)).clamp(8000, flow.0.max(8000)));
    for number in 0..CLASSES {
        batch.push_str(&class("1", FIRST + number, share, flow, PACKET));
    }
    for (priority, protocol, header) in [(1, "ip", 20), (2, "ipv6", 40)] {
        let code = flow_hash(header);
        batch.push_str(&format!(
            "filter add dev {device} parent 1: protocol {protocol} prio {priority} \
             bpf bytecode \"{code}\"\n"
        ));
    }
    batch
}

/// Classic BPF that returns the class of a TCP or UDP packet: the high byte of
/// `(source port ^ destination port) * 2^32 / golden ratio`.
///
/// `header` is the length of the IP header (options are not looked for). Loads
/// are relative to the network header, so that the same code fits an Ethernet
/// and a TUN device.
fn flow_hash(header: u32) -> String {
    const LOAD_WORD: u32 = 0x20;
    const COPY_TO_X: u32 = 0x07;
    const SHIFT_RIGHT: u32 = 0x74;
    const XOR_X: u32 = 0xac;
    const AND: u32 = 0x54;
    const MULTIPLY: u32 = 0x24;
    const ADD: u32 = 0x04;
    const RETURN_A: u32 = 0x16;
    // The kernel's SKF_NET_OFF as an unsigned number.
    const NETWORK: u32 = 0xfff0_0000;
    let steps = [
        (LOAD_WORD, NETWORK + header),
        (COPY_TO_X, 0),
        (SHIFT_RIGHT, 16),
        (XOR_X, 0),
        (AND, 0xffff),
        (MULTIPLY, 0x9e37_79b1),
        (SHIFT_RIGHT, 32 - CLASSES.ilog2()),
        (ADD, (1 << 16) + FIRST),
        (RETURN_A, 0),
    ];
    let lines: Vec<String> = steps.iter().map(|(code, k)| format!("{code} 0 0 {k}")).collect();
    format!("{},{}", lines.len(), lines.join(","))
}

/// Bytes sent by each class below the parent that sent any.
pub(super) fn class_bytes(host: &Host, device: &str) -> Result<BTreeMap<u32, u64>> {
    let shown = run(host.command("tc").args(["-s", "class", "show", "dev", device]))?;
    Ok(parse_classes(&shown))
}

fn parse_classes(shown: &str) -> BTreeMap<u32, u64> {
    let mut bytes = BTreeMap::new();
    let mut minor = None;
    for line in shown.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("class") => {
                minor = words
                    .nth(1)
                    .and_then(|class| u32::from_str_radix(class.strip_prefix("1:")?, 16).ok())
                    .filter(|minor| *minor >= FIRST);
            }
            Some("Sent") => {
                let sent = words.next().and_then(|count| count.parse().ok()).unwrap_or(0);
                if let Some(minor) = minor.take().filter(|_| sent > 0) {
                    bytes.insert(minor, sent);
                }
            }
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_refused() {
        assert_eq!("4950mbit".parse::<Rate>().ok(), Some(Rate::mbit(4950)));
        assert_eq!("1Gbit".parse::<Rate>().ok(), Some(Rate(1_000_000_000)));
        for wrong in ["", "mbit", "-1mbit", "0mbit", "5", "99999999999gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_rate_means_no_queue() {
        assert_eq!(script("path0", Shape::default()), "");
    }

    #[test]
    fn a_flow_rate_makes_all_classes_and_both_filters() {
        let batch = script("path0", Shape::mbit(4950, 3700));
        assert_eq!(batch.matches("ceil 3700000000bit").count(), 256);
        assert_eq!(batch.matches("bpf bytecode").count(), 2);
    }

    #[test]
    fn class_counters_are_parsed() {
        let shown = "class htb 1:1 root rate 1 ceil 1\n Sent 900 bytes 5 pkt\n\
                     class htb 1:1f parent 1:1 prio 0\n Sent 800 bytes 4 pkt\n\
                     class htb 1:20 parent 1:1 prio 0\n Sent 0 bytes 0 pkt\n";
        assert_eq!(parse_classes(shown), BTreeMap::from([(0x1f, 800)]));
    }
}
