//! `vmferry status`: what interrupted jobs left in folders of this host.

use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use proto::control::Failure;
use receiver::unfinished::{self, Kind, Unfinished};
use serde::Serialize;

use crate::cli::Status;
use crate::terminal::{complain, say};
use crate::{exit, report};

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Copy {
        path: String,
        kind: &'static str,
        reason: Option<&'a str>,
        running: bool,
        image_bytes: Option<u64>,
        durable_bytes: Option<u64>,
        disk_bytes: u64,
        begun: Option<u64>,
        changed: Option<u64>,
        source: Option<&'a str>,
        next: String,
    },
    Done {
        copies: usize,
        disk_bytes: u64,
    },
}

/// Runs the verb.
pub fn run(args: &Status) -> ExitCode {
    match list(args) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            if args.json {
                report::failed_object(&failure);
            }
            complain(&format!("vmferry: {}", failure.reason));
            ExitCode::from(failure.exit)
        }
    }
}

fn list(args: &Status) -> Result<(), Failure> {
    let mut copies = Vec::new();
    for folder in &args.folders {
        copies.extend(unfinished::list(folder)?);
    }
    if args.json {
        for copy in &copies {
            report::object(&object(copy));
        }
        let disk_bytes = copies.iter().map(|copy| copy.disk).sum();
        report::object(&Line::Done { copies: copies.len(), disk_bytes });
    } else if copies.is_empty() {
        let folders: Vec<_> = args.folders.iter().map(|folder| folder.display().to_string()).collect();
        say(&format!("no unfinished copies in {}", folders.join(", ")));
    } else {
        table(&copies).iter().for_each(|line| say(line));
    }
    Ok(())
}

fn object(copy: &Unfinished) -> Line<'_> {
    Line::Copy {
        path: copy.path.display().to_string(),
        kind: copy.kind.as_str(),
        reason: copy.reason.as_deref(),
        running: copy.running,
        image_bytes: copy.size,
        durable_bytes: copy.durable,
        disk_bytes: copy.disk,
        begun: copy.begun,
        changed: copy.changed,
        source: copy.source.as_deref(),
        next: next(copy),
    }
}

const HEAD: [&str; 8] = ["COPY OF", "SIZE", "DURABLE", "ON DISK", "BEGUN", "CHANGED", "WHAT", "SOURCE"];

/// Columns that fit, and below each row what can be done.
fn table(copies: &[Unfinished]) -> Vec<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let rows: Vec<[String; 8]> =
        [HEAD.map(String::from)].into_iter().chain(copies.iter().map(|copy| row(copy, now))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&rows[0])];
    for (row, copy) in rows[1..].iter().zip(copies) {
        lines.push(line(row));
        let reason = copy.reason.as_ref().map_or(String::new(), |reason| format!("{reason}: "));
        lines.push(format!("  {reason}{}", next(copy)));
    }
    lines
}

fn row(copy: &Unfinished, now: u64) -> [String; 8] {
    let or_dash = |known: Option<String>| known.unwrap_or_else(|| "-".into());
    let durable = copy.durable.zip(copy.size).map(|(durable, size)| {
        let percent = if size == 0 { 100.0 } else { durable as f64 * 100.0 / size as f64 };
        format!("{}, {:.0} %", report::bytes(durable), percent.floor())
    });
    [
        copy.path.display().to_string(),
        or_dash(copy.size.map(report::bytes)),
        or_dash(durable),
        report::bytes(copy.disk),
        or_dash(copy.begun.map(|at| age(now.saturating_sub(at)))),
        or_dash(copy.changed.map(|at| age(now.saturating_sub(at)))),
        format!("{}{}", what(copy.kind), if copy.running { ", job running" } else { "" }),
        or_dash(copy.source.clone()),
    ]
}

fn what(kind: Kind) -> &'static str {
    match kind {
        Kind::New => "new copy",
        Kind::Clone => "clone of the older copy",
        Kind::InPlace => "older copy, changed in place",
        Kind::Complete => "complete",
        Kind::Orphan => "ledger alone",
        Kind::Damaged => "damaged",
        Kind::Foreign => "not vmferry's",
    }
}

/// What can be done with it, as a sentence.
fn next(copy: &Unfinished) -> String {
    let drop = drop_command(&copy.path);
    if copy.running {
        return "a job has it: wait for it or end it".into();
    }
    match copy.kind {
        Kind::New => format!("the same 'vmferry send' as before goes on with it; '{drop}' removes it"),
        Kind::Clone => {
            format!("the same 'vmferry send --delta' as before goes on with it; '{drop}' removes it")
        }
        Kind::InPlace => format!(
            "the same 'vmferry send --delta --inplace' as before finishes it; '{drop} --force' gives up the only copy there is"
        ),
        Kind::Complete => {
            format!(
                "the same 'vmferry send' as before sends the job's other images; '{drop}' removes the ledger alone"
            )
        }
        Kind::Orphan => format!("the next 'vmferry send' to this name clears it away, as '{drop}' does"),
        Kind::Damaged => format!("'vmferry send' starts it over; '{drop} --force' removes it"),
        Kind::Foreign => "it is left alone".into(),
    }
}

fn drop_command(path: &Path) -> String {
    let path = path.to_string_lossy();
    format!("vmferry drop {}", shlex::try_quote(&path).unwrap_or_else(|_| path.clone()))
}

/// Seconds for people: `5 min`.
fn age(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s if s < 48 * 3600 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_commands() {
        for (seconds, said) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 d")] {
            assert_eq!(age(seconds), said);
        }
        assert_eq!(drop_command(Path::new("/a b/c.img")), "vmferry drop '/a b/c.img'");
    }
}
