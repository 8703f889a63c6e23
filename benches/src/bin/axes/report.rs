//! One table for each axis and transport, and whether it holds.

use vmferry_benches::figures::{median, spread};

use crate::steps::{Axis, Step};
use crate::{Run, Transport};

/// A step that reaches less than this part of a neighbour's rate is a cliff.
const LEAST: f64 = 0.7;
/// The huge sparse image may take so many times as long as a dense one of its data.
const SPARSE_MOST: f64 = 1.1;
/// Memory of each end, bytes, at the default settings: the limit of `tests/memory.rs`.
const MEMORY_MOST: u64 = 160 << 20;

/// The medians of a step.
struct Row<'a> {
    name: &'a str,
    gbps: f64,
    least: f64,
    most: f64,
    seconds: f64,
    /// MiB.
    sender: f64,
    receiver: f64,
    slowest: String,
}

impl Row<'_> {
    fn of<'a>(step: &'a Step, runs: &[&Run]) -> Row<'a> {
        let (least, most) = spread(runs.iter().map(|r| r.gbps));
        let mut slowest: Vec<&str> = runs.iter().filter_map(|r| r.done["bottleneck"].as_str()).collect();
        slowest.sort_unstable();
        slowest.dedup();
        let mib = |bytes: u64| (bytes >> 10) as f64 / 1024.0;
        Row {
            name: &step.name,
            gbps: median(runs.iter().map(|r| r.gbps)),
            least,
            most,
            seconds: median(runs.iter().map(|r| r.seconds)),
            sender: spread(runs.iter().map(|r| mib(r.peaks.sender))).1,
            receiver: spread(runs.iter().map(|r| mib(r.peaks.receiver))).1,
            slowest: slowest.join(", "),
        }
    }
}

/// Prints the table and the verdict; returns whether the axis holds.
pub fn print(axis: Axis, transport: Transport, steps: &[Step], runs: &[Run]) -> bool {
    let of = |index| runs.iter().filter(|r| r.step == index).collect::<Vec<_>>();
    let rows: Vec<Row<'_>> = steps.iter().enumerate().map(|(i, step)| Row::of(step, &of(i))).collect();
    println!(
        "\n| {axis}, {} | Gb/s | min-max | to the one before | seconds | sender MiB | receiver MiB | slowest stage |",
        transport.as_str()
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (i, row) in rows.iter().enumerate() {
        let ratio = match i {
            0 => "-".into(),
            _ => format!("{:.2}", row.gbps / rows[i - 1].gbps),
        };
        println!(
            "| {} | {:.2} | {:.2}-{:.2} | {ratio} | {:.2} | {:.0} | {:.0} | {} |",
            row.name, row.gbps, row.least, row.most, row.seconds, row.sender, row.receiver, row.slowest
        );
    }
    println!();
    match axis {
        Axis::Size => has_no_price(&rows),
        _ => has_no_cliff(&rows),
    }
}

fn has_no_cliff(rows: &[Row<'_>]) -> bool {
    let cliffs: Vec<&str> = (0..rows.len())
        .filter(|i| {
            let neighbours = [i.checked_sub(1), Some(i + 1)].into_iter().flatten();
            neighbours.filter_map(|n| rows.get(n)).any(|n| rows[*i].gbps < LEAST * n.gbps)
        })
        .map(|i| rows[i].name)
        .collect();
    verdict("no step loses more than 30 % against its neighbour", &cliffs.join(", "))
}

/// The last row is the huge sparse image, the one before a dense image of as much data.
fn has_no_price(rows: &[Row<'_>]) -> bool {
    let [.., dense, sparse] = rows else { return false };
    let times = sparse.seconds / dense.seconds;
    let slow = if times <= SPARSE_MOST { String::new() } else { format!("{times:.2} times") };
    let as_fast = verdict("a hole of terabytes takes at most 1.1 times as long as none", &slow);
    let most = MEMORY_MOST as f64 / f64::from(1 << 20);
    let large = rows.iter().filter(|row| row.sender.max(row.receiver) > most).map(|row| row.name);
    let large = large.collect::<Vec<_>>().join(", ");
    verdict("no end needs more than 160 MiB of memory", &large) && as_fast
}

fn verdict(claim: &str, but: &str) -> bool {
    if but.is_empty() {
        println!("{claim}: holds");
    } else {
        println!("{claim}: does not hold at {but}");
    }
    but.is_empty()
}
