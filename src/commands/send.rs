//! `vmferry send`: images to another host, or from there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use blockio::priority;
use proto::control::Failure;
use proto::manifest;
use sender::{Disk, Job, Meter, Options, Source, Summary, qcow2};

use super::errand;
use crate::cli::{Digest, Format, Send, Verify};
use crate::narrator::Narrator;
use crate::progress::{self, Progress};
use crate::report::Report;
use crate::{exit, pull, remote, stop};

/// What an interrupted command says.
pub const INTERRUPTED: &str =
    "interrupted: run the same command again; what is durable at the destination is not sent twice";

/// Runs the verb.
pub fn run(args: &Send) -> ExitCode {
    if args.stdio {
        return errand::run();
    }
    let report = Report::new(args);
    let job = || if args.pull { pull::run(args, &report) } else { send(args, &report) };
    match make_way(args.nice).and_then(|()| job()) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            report.failed(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

/// Lets everything else on this host come first, if that is what is asked. Threads inherit it: it
/// comes before the first of them.
///
/// # Errors
/// A sentence, exit code 3.
pub fn make_way(nice: bool) -> Result<(), Failure> {
    let refused = |e: blockio::Error| Failure::new(exit::REFUSED, format!("--nice: {e}"));
    if nice { priority::yield_to_others().map_err(refused) } else { Ok(()) }
}

fn send(args: &Send, report: &Report) -> Result<(), Failure> {
    let sources = open(&args.images, args.format == Format::Auto, !args.no_direct, args.force)?;
    let total: u64 = sources.iter().map(|s| s.entry().size).sum();
    report.set_image_bytes(total);
    let options = Options {
        streams: args.streams,
        chunk: args.chunk,
        engine: args.engine,
        no_holes: args.no_holes,
        memory: args.memory,
        b3_always: args.digest == Digest::B3,
        path: args.to.path.clone(),
        force: args.force,
        dry_run: args.dry_run,
        sync_window: args.sync_window,
        limit: args.limit,
        readback: args.verify == Verify::Readback,
        delta: args.delta(),
        chown: args.chown.clone(),
        dead_after: Duration::from_secs(u64::from(args.peer_timeout)),
        patience: Duration::from_secs(u64::from(args.patience)),
    };
    let disk = Disk::start(&options)?;

    let receiver = remote::start(args)?;
    let job = Job {
        disk,
        host: args.to.host.clone(),
        asked_for: false,
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

/// Opens the images of a job. `check_format`: refuses those that need another file.
///
/// # Errors
/// A sentence that names the image, exit code 3.
pub fn open(
    images: &[PathBuf],
    check_format: bool,
    direct: bool,
    force: bool,
) -> Result<Vec<Source>, Failure> {
    if check_format {
        images.iter().try_for_each(|path| qcow2::check_whole(path))?;
    }
    let sources = images.iter().map(|path| Source::open(path, direct, force));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let entries: Vec<_> = sources.iter().map(|s| s.entry().clone()).collect();
    manifest::check(&entries).map_err(|reason| Failure::new(exit::REFUSED, reason))?;
    Ok(sources)
}

/// Runs the job beside its progress display.
async fn drive(job: Job, total: u64, args: &Send, report: &Report) -> Result<Summary, Failure> {
    let meter = Arc::new(Meter::default());
    let counters = meter.clone();
    let progress = Progress::new(args, total, move || counters.snapshot(false));
    let narrator = Narrator::new(args, report, &progress);
    let work = sender::run(job, meter, |event| narrator.tell(event), stop::requested(INTERRUPTED, true));
    let result = progress::beside(&progress, report, work).await;
    narrator.conclude(result)
}
