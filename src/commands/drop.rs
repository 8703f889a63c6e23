//! `vmferry drop`: removes what interrupted jobs left on this host.

use std::path::Path;
use std::process::ExitCode;

use proto::control::Failure;
use receiver::unfinished::{self, Dropped, Kind, Place};
use serde::Serialize;

use crate::cli::Discard;
use crate::terminal::{complain, say};
use crate::{exit, report};

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Dropped { path: String, kind: &'static str, freed_bytes: u64 },
    Refused { path: String, reason: &'a str },
    Done { dropped: usize, freed_bytes: u64 },
}

/// Runs the verb: one after the other, whatever becomes of the others.
pub fn run(args: &Discard) -> ExitCode {
    let (mut seen, mut dropped, mut freed) = (Vec::new(), 0, 0);
    let mut first: Option<Failure> = None;
    for path in &args.paths {
        if unfinished::is_device(path) {
            match unfinished::forget_device(path) {
                Ok(()) => {
                    dropped += 1;
                    forgotten(args, path);
                }
                Err(failure) => refused(args, path, failure, &mut first),
            }
            continue;
        }
        let outcome = Place::at(path).and_then(|place| {
            // A part file and its ledger are one copy.
            if seen.contains(&place.path()) {
                return Ok(());
            }
            seen.push(place.path());
            let what = place.discard(args.force)?;
            tell(args, &place, &what);
            dropped += 1;
            freed += what.bytes;
            Ok(())
        });
        if let Err(failure) = outcome {
            refused(args, path, failure, &mut first);
        }
    }
    if args.json {
        match &first {
            Some(failure) => report::failed_object(failure),
            None => report::object(&Line::Done { dropped, freed_bytes: freed }),
        }
    }
    ExitCode::from(first.map_or(exit::DONE, |failure| failure.exit))
}

fn refused(args: &Discard, path: &Path, failure: Failure, first: &mut Option<Failure>) {
    if args.json {
        let path = path.display().to_string();
        report::object(&Line::Refused { path, reason: &failure.reason });
    }
    complain(&format!("vmferry: {}", failure.reason));
    first.get_or_insert(failure);
}

fn forgotten(args: &Discard, device: &Path) {
    let path = device.display().to_string();
    if args.json {
        return report::object(&Line::Dropped { path, kind: "device", freed_bytes: 0 });
    }
    say(&format!("the unfinished copy on {path} is forgotten; what is on it was not touched"));
}

fn tell(args: &Discard, place: &Place, what: &Dropped) {
    let path = place.path().display().to_string();
    if args.json {
        let (kind, freed_bytes) = (what.kind.as_str(), what.bytes);
        return report::object(&Line::Dropped { path, kind, freed_bytes });
    }
    let freed = report::bytes(what.bytes);
    say(&match what.kind {
        Kind::Complete => format!("{path} is complete and stays, its ledger was dropped: {freed} freed"),
        Kind::Orphan => format!("a ledger of {path} was dropped: {freed} freed"),
        _ => format!("the unfinished copy of {path} was dropped: {freed} freed"),
    });
}
