//! `vmferry send`: images to another host.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use proto::control::Failure;
use proto::manifest;
use sender::job::Event;
use sender::{Disk, Job, Meter, Options, Source, Summary, qcow2};

use crate::cli::{Digest, Format, Send, Verify};
use crate::progress::{self, Progress};
use crate::report::Report;
use crate::{exit, remote, stop};

const INTERRUPTED: &str = "interrupted; the destination is as it was: run the same command again";

/// Runs the verb.
pub fn run(args: &Send) -> ExitCode {
    let report = Report::new(args);
    match send(args, &report) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            report.failed(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

fn send(args: &Send, report: &Report) -> Result<(), Failure> {
    if args.format == Format::Auto {
        args.images.iter().try_for_each(|path| qcow2::check_whole(path))?;
    }
    let open = |path| Source::open(path, !args.no_direct, args.force);
    let sources = args.images.iter().map(|p| open(p)).collect::<Result<Vec<_>, _>>()?;
    let entries: Vec<_> = sources.iter().map(|s| s.entry().clone()).collect();
    manifest::check(&entries).map_err(|reason| Failure::new(exit::REFUSED, reason))?;
    let total: u64 = entries.iter().map(|e| e.size).sum();
    report.set_image_bytes(total);
    let options = Options {
        streams: args.streams,
        chunk: args.chunk,
        engine: args.engine,
        memory: args.memory,
        b3_always: args.digest == Digest::B3,
        path: args.to.path.clone(),
        force: args.force,
        dry_run: args.dry_run,
        sync_window: args.sync_window,
        limit: args.limit,
        readback: args.verify == Verify::Readback,
        chown: args.chown.clone(),
        dead_after: Duration::from_secs(u64::from(args.peer_timeout)),
    };
    let disk = Disk::start(&options)?;

    let receiver = remote::start(args)?;
    let job = Job {
        disk,
        host: args.to.host.clone(),
        sources,
        dialer: receiver.dialer,
        addresses: receiver.addresses,
        via: receiver.via,
        options,
    };
    let broke = |e: std::io::Error| Failure::new(exit::FAILED, format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broke)?;
    let summary = runtime.block_on(drive(job, total, args, report));
    // A read that hangs in a dying file system must not keep the command from ending.
    runtime.shutdown_timeout(Duration::from_secs(2));
    report.done(&summary?);
    Ok(())
}

/// Runs the job beside its progress display.
async fn drive(job: Job, total: u64, args: &Send, report: &Report) -> Result<Summary, Failure> {
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(args, total, meter.clone());
    let in_place = RefCell::new(Vec::new());
    let device = RefCell::new(None);
    let tell = |event: Event| match event {
        Event::Overwriting(path) => *device.borrow_mut() = Some(path),
        Event::Started { notices, peer } => {
            progress.aside(|| report.started(&notices, peer));
            progress.begin();
        }
        Event::Committed { name, path, notices } => {
            progress.aside(|| report.committed(&name, &path, &notices));
            in_place.borrow_mut().push(name);
        }
    };
    let work = sender::run(job, meter, tell, stop::requested(INTERRUPTED, true));
    let result = progress::beside(&progress, report, work)
        .await
        .map_err(|failure| incomplete(failure, &args.to.host, device.take()));
    progress.finish();
    result.map_err(|failure| {
        let names = in_place.into_inner().join(", ");
        let reason = match failure.exit {
            _ if names.is_empty() => failure.reason,
            exit::INTERRUPTED => format!("interrupted; already in place: {names}; send the rest again"),
            _ => format!("{}; already in place: {names}", failure.reason),
        };
        Failure { reason, ..failure }
    })
}

/// The failure of a job that was overwriting a device, which has no old state to go back to.
fn incomplete(failure: Failure, host: &str, device: Option<String>) -> Failure {
    let Some(device) = device else { return failure };
    let what = if failure.exit == exit::INTERRUPTED { "interrupted" } else { &failure.reason };
    let next = if failure.exit == exit::INTERRUPTED { ": run the same command again" } else { "" };
    Failure::new(failure.exit, format!("{what}; {host}:{device} holds an incomplete copy now{next}"))
}
