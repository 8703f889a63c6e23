//! Tables and the document.

use std::fmt::Write;

use crate::promises::{RAW, judge};
use crate::results::{Figures, Kind, Results, Row, Scene};

const METHOD: &str = "\
One machine plays both hosts: two network namespaces joined by a veth pair (`bare`), by one that is shaped to
4950 Mbit/s in all and 3700 per connection (`cable`), or by the same with a round trip of 20 ms (`far`, a relay
holds the packets). Source and copy are on one disk (`disk`) or in /dev/shm (`memory`). In each round every
contender runs once, in an order that changes from round to round; before each run the last copy is removed,
the disk flushed and the source dropped from the page cache. Figures are medians over the rounds.

- **wall**: from the start of the command to the durable end; servers (NBD, rsync, ssh, http) are up before.
  Where a tool does not flush the file itself, `sync FILE` is part of its time. **MB/s** (10^6 bytes of data,
  holes not counted) is by that clock.
- **own**: MB/s by the tool's own clock, from its first read to the durable answer. vmferry and the raw loop
  are compared by this one, so that vmferry's remote start and the raw loop's preallocation, which is done
  before, count for neither; with all others the wall decides.
- **CPU**: seconds of both ends for 10^9 bytes of data, by a control group for each end. Threads of the kernel
  (writing back, interrupts) and the relay of `far` are not in there.
- **RSS**: peak memory of the processes of each end in MiB, looked at every 50 ms; the page cache is not in it.
- **connections**: most TCP connections at a time, looked at every 200 ms; control connections count.
- **checked**: what the tool itself does to find out whether the copy is right. Here every copy is compared
  with its source after the clock has stopped; one that differs is a failure.
- **raw loop**: direct reads, plain TCP, direct writes, one flush; no hash, no encryption, nothing checked.
  The dense copy is preallocated on a disk (in memory that would be most of the work, done before the clock
  starts), of the sparse image only the data is sent. **hashed**: the same with the BLAKE3 hash of each MiB, made
  at both ends and compared before it is written: the bound of any tool that checks what it copies.
- NBD targets are new files of the full size, and the tools are told that they are zero. rsync talks to a
  daemon, without ssh. ssh and scp use AES-128-GCM. rclone fetches, since it uses several connections only so.
";

/// The document.
pub fn document(results: &Results) -> String {
    let mut out = String::new();
    let machine = &results.machine;
    out.push_str("# vmferry and other tools, measured\n\nWritten by `make bench-peers`.\n\n");
    out.push_str("| | |\n|---|---|\n");
    let memory = format!("{:.0} GiB", machine.memory as f64 / f64::from(1 << 30));
    let cores = machine.cores.to_string();
    for (name, value) in [
        ("date", &results.date),
        ("processor", &machine.cpu),
        ("cores", &cores),
        ("memory", &memory),
        ("kernel", &machine.kernel),
        ("disk", &machine.disk),
    ] {
        line(&mut out, &[name, value]);
    }
    for (name, version) in &results.tools {
        line(&mut out, &[name, version]);
    }
    let _ = writeln!(out, "\n## How\n\n{METHOD}");
    out.push_str(&summary(results));
    out
}

/// The part of it that changes: a table for each scene, and the promises about them.
pub fn summary(results: &Results) -> String {
    let mut out = String::new();
    let scenes = results.scenes();
    for (scene, rows) in &scenes {
        out.push_str(&table(*scene, rows));
        out.push('\n');
    }
    let verdicts = judge(&scenes);
    if !verdicts.is_empty() {
        out.push_str("## What vmferry promises\n\n");
        for verdict in verdicts {
            let _ = writeln!(out, "- {verdict}");
        }
    }
    out
}

fn table(scene: Scene, rows: &[Row<'_>]) -> String {
    let mut out = String::new();
    let image = rows.first().map(Row::first);
    let (size, data) = image.map_or((0, 0), |run| (run.image_bytes >> 20, run.data_bytes >> 20));
    let rounds = rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
    let _ = writeln!(out, "## {scene}\n\n{size} MiB, {data} MiB of it data; rounds: {rounds}.\n");
    let head = [
        "contender",
        "wall s",
        "MB/s (min-max)",
        "own MB/s",
        "CPU s/GB",
        "RSS MiB source/dest.",
        "connections",
        "checked",
        "holes kept",
        "rate / raw loop 4",
    ];
    line(&mut out, &head);
    line(&mut out, &["---"; 10]);
    let raw = rows.iter().find(|row| row.name() == RAW);
    for row in rows {
        line(&mut out, &cells(row, raw).each_ref().map(String::as_str));
    }
    for row in rows {
        let failures = row.failures();
        if let Some(reason) = failures.first() {
            let _ = write!(out, "\n**{}** failed in {} of {}: ", row.name(), failures.len(), row.runs.len());
            let _ = writeln!(out, "{reason}");
        }
    }
    out
}

/// What the row says; figures are of the runs that did not fail.
fn cells(row: &Row<'_>, raw: Option<&Row<'_>>) -> [String; 10] {
    let data = row.first().data_bytes as f64 / 1e6;
    let mib = |bytes: u64| Some(bytes as f64 / f64::from(1 << 20));
    let show = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    let name = match (row.failures().len(), row.runs.len()) {
        (0, _) => row.name().to_owned(),
        (failed, all) if failed == all => format!("{} **failed**", row.name()),
        (failed, all) => format!("{} **failed {failed} of {all}**", row.name()),
    };
    let rate = |figures: Figures| data / figures.wall_seconds;
    let least = row.figures().map(rate).reduce(f64::min);
    let most = row.figures().map(rate).reduce(f64::max);
    let rates = match (row.median(|f| Some(rate(f))), least, most) {
        (Some(middle), Some(least), Some(most)) => format!("{middle:.0} ({least:.0}-{most:.0})"),
        _ => "-".into(),
    };
    // By the own clock where both have one, else by the wall.
    let of_raw = raw.and_then(|raw| match (raw.own(), row.own()) {
        (Some(theirs), Some(ours)) => Some(theirs / ours),
        _ => Some(raw.wall()? / row.wall()?),
    });
    let memory = [row.median(|f| mib(f.source_memory)), row.median(|f| mib(f.destination_memory))];
    let holes = match row.figures().filter_map(|f| f.holes_kept).reduce(|a, b| a && b) {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    let connections = row.figures().map(|f| f.connections).max();
    let is_copy = row.first().kind != Kind::Information;
    [
        name,
        show(row.wall(), 2),
        rates,
        show(row.own().map(|seconds| data / seconds), 0),
        show(row.cpu_per_gb(), 2),
        if least.is_some() { memory.map(|m| show(m, 0)).join("/") } else { "-".into() },
        connections.map_or("-".into(), |count| count.to_string()),
        if is_copy { row.first().checked.clone() } else { "-".into() },
        holes.into(),
        show(of_raw, 2),
    ]
}

/// One line of a table.
fn line(out: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
