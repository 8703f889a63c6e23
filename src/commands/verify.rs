//! `vmferry verify`: two images compared where they lie, or the digests of one.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use proto::control::Failure;
use proto::digest::{B3_ZERO_LIMIT, Digests, ImageDigest};
use proto::granules::{Content, Run};
use proto::verify::{Account, Comparison, Manner, Misfit};
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;

use super::inspect;
use crate::cli::{Digest, Image, Verification};
use crate::ends::{End, Heard, Loss};
use crate::verdict::{Compared, Verdict};
use crate::{exit, stop};

const INTERRUPTED: &str = "interrupted; nothing was changed: run the same command again";

/// Runs the verb.
pub fn run(args: &Verification) -> ExitCode {
    if args.stdio {
        return inspect::run();
    }
    let verdict = Verdict::new(args);
    match verify(args, &verdict) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            verdict.failed(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

fn verify(args: &Verification, verdict: &Verdict) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(|e| Failure::new(exit::FAILED, format!("cannot start: {e}")))?;
    let result = runtime.block_on(async {
        tokio::select! {
            biased;
            failure = stop::requested(INTERRUPTED, true) => Err(failure),
            result = judge(args, verdict) => result,
        }
    });
    verdict.clear();
    // A read that hangs in a dying file system must not keep the command from ending.
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

async fn judge(args: &Verification, verdict: &Verdict) -> Result<(), Failure> {
    let mut ends = open(args).await?;
    verdict.started(&ends);
    match &mut ends[..] {
        [one] => {
            let size = args.size.unwrap_or(one.size);
            if size > one.size {
                let reason = format!("{} has {} bytes, fewer than --size {size}", one.name, one.size);
                return Err(Failure::new(exit::REFUSED, reason));
            }
            one.go(size);
            let done = [one.done.clone()];
            let digests = verdict.beside(size, &done, digest(one, size, args.digest)).await?;
            one.close().await;
            verdict.digests(one, size, &digests);
            Ok(())
        }
        [a, b] => {
            let limit = args.size.unwrap_or(u64::MAX);
            let sizes = [a.size.min(limit), b.size.min(limit)];
            let size = sizes[0].min(sizes[1]);
            let done = [a.done.clone(), b.done.clone()];
            let started = Instant::now();
            a.go(size);
            b.go(size);
            let mut compared = Compared::new(size, sizes[0] == sizes[1]);
            let work = compare(a, b, size, |range| {
                verdict.difference(&range);
                compared.add(range);
            });
            verdict.beside(size, &done, work).await?;
            compared.took = started.elapsed();
            tokio::join!(a.close(), b.close());
            verdict.compared(&ends, &compared)
        }
        _ => Err(Failure::new(exit::USAGE, "one image or two")),
    }
}

/// Opens all images; those on this host first, before any other host is asked.
async fn open(args: &Verification) -> Result<Vec<End>, Failure> {
    let manner = Manner {
        engine: args.engine.to_string(),
        direct: !args.no_direct,
        force: args.force,
        trust_holes: args.trust_holes,
    };
    let dead_after = Duration::from_secs(args.peer_timeout.into());
    let mut found: Vec<Option<End>> = Vec::new();
    for place in &args.places {
        let here = matches!(place, Image::Here(_));
        found.push(if here { Some(End::open(place, &manner, dead_after).await?) } else { None });
    }
    // Both at once when both are elsewhere.
    let asked = async |end: Option<End>, place: &Image| match end {
        Some(end) => Ok(end),
        None => End::open(place, &manner, dead_after).await,
    };
    let mut opened = found.into_iter().zip(&args.places);
    match (opened.next(), opened.next()) {
        (Some((a, at)), Some((b, bt))) => {
            let (a, b) = tokio::try_join!(asked(a, at), asked(b, bt))?;
            Ok(vec![a, b])
        }
        (Some((a, at)), None) => Ok(vec![asked(a, at).await?]),
        (None, _) => Ok(Vec::new()),
    }
}

/// Compares while both ends tell.
async fn compare(
    a: &mut End,
    b: &mut End,
    size: u64,
    mut differs: impl FnMut(Range<u64>),
) -> Result<(), Failure> {
    let mut comparison = Comparison::new(size);
    while !(a.finished && b.finished) {
        let listen = [!a.finished && comparison.wants(0), !b.finished && comparison.wants(1)];
        let (end, heard) = tokio::select! {
            heard = a.next(), if listen[0] => (0, heard),
            heard = b.next(), if listen[1] => (1, heard),
        };
        let fits = heard.and_then(|heard| {
            match heard {
                Heard::Run(run) => comparison.add(end, run, &mut differs),
                Heard::Alive => Ok(()),
                Heard::End => comparison.end(end),
            }
            .map_err(|Misfit| Loss::Nonsense)
        });
        if let Err(loss) = fits {
            return Err(if end == 0 { a.explain(loss).await } else { b.explain(loss).await });
        }
    }
    comparison.close(differs);
    Ok(())
}

/// Digests of what one end tells.
async fn digest(end: &mut End, size: u64, which: Digest) -> Result<Digests, Failure> {
    let limit = if which == Digest::B3 { u64::MAX } else { B3_ZERO_LIMIT };
    let mut account = Account::new(size);
    let mut digest = ImageDigest::new(size, limit);
    while !end.finished {
        let run = match end.next().await {
            Ok(Heard::Run(run)) => run,
            Ok(Heard::Alive | Heard::End) => continue,
            Err(loss) => return Err(end.explain(loss).await),
        };
        let Ok(at) = account.add(&run) else { return Err(end.explain(Loss::Nonsense).await) };
        let run = Run { start: at, content: run };
        match run.content {
            Content::Data(_) => digest.add(run),
            Content::Zero(_) => {
                // Zeros are hashed for b3, which may take seconds.
                let hashing = spawn_blocking(move || {
                    digest.add(run);
                    digest
                });
                let broke = |e| Failure::new(exit::FAILED, format!("hashing broke down: {e}"));
                digest = hashing.await.map_err(broke)?;
            }
        }
    }
    match digest.finish() {
        Some(digests) => Ok(digests),
        None => Err(end.explain(Loss::Nonsense).await),
    }
}
