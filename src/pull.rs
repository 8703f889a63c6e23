//! The other way round: this process is the receiver, and starts the sender through a remote shell.
//!
//! The sender dials back; the shell stays, since it carries what the user is told, and tells each
//! end when the other is gone.

use std::cell::Cell;
use std::net::TcpListener;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use lanes::identity::{Fingerprint, Identity, random};
use lanes::listen::{self, Doorkeeper, Pass};
use lanes::{tls, tune::Tuning};
use proto::control::{Failure, SessionId};
use proto::errand::{Errand, News, Summary};
use proto::join::Secret;
use receiver::{Asked, Config, Terms};
use sender::job::Event;
use sender::meter::Snapshot;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::bootstrap::{self, BootstrapError};
use crate::cli::{Digest, Format, Send, Verify};
use crate::commands::{errand, receive, send::INTERRUPTED};
use crate::narrator::Narrator;
use crate::progress::{self, Progress};
use crate::remote::{self, Shell};
use crate::report::Report;
use crate::{exit, stop};

/// What the sender still has to tell after a failure, and a failure after the shell has ended, may
/// take so long.
const GRACE: Duration = Duration::from_millis(500);
/// The shell has so long to end when the job has.
const HANG_UP: Duration = Duration::from_secs(5);

type Heard = mpsc::UnboundedReceiver<Result<News, BootstrapError>>;

/// What this end of the job has ready before the other is asked.
struct End {
    listener: TcpListener,
    identity: Identity,
    secret: Secret,
    session: SessionId,
}

/// Fetches the images.
///
/// # Errors
/// The first cause, with its exit code; what the other host says begins with its name.
pub fn run(args: &Send, report: &Report) -> Result<(), Failure> {
    let crypto = |e: lanes::Error| Failure::new(exit::FAILED, e.to_string());
    let (listener, port) = listen::bind(args.port).map_err(|e| Failure::new(exit::REFUSED, e.to_string()))?;
    let identity = Identity::one_time().map_err(crypto)?;
    let secret = Secret(random().map_err(crypto)?);
    let session = SessionId(random().map_err(crypto)?);
    let errand = Errand {
        images: args.images.iter().map(|path| path.display().to_string()).collect(),
        path: args.to.path.clone(),
        streams: args.streams,
        transport: args.transport.into(),
        limit: args.limit,
        chunk: args.chunk.bytes(),
        memory: args.memory,
        engine: args.engine.to_string(),
        no_holes: args.no_holes,
        direct: !args.no_direct,
        force: args.force,
        check_format: args.format == Format::Auto,
        b3_always: args.digest == Digest::B3,
        sync_window: args.sync_window,
        readback: args.verify == Verify::Readback,
        delta: args.delta(),
        dry_run: args.dry_run,
        chown: args.chown.clone(),
        dead_after_ms: args.peer_timeout * 1000,
        nice: args.nice,
        patience_ms: args.patience * 1000,
        fingerprint: identity.fingerprint().0,
        secret: secret.clone(),
        session,
        port,
        family: args.family(),
        via: args.via.clone(),
        addresses: receive::addresses(),
    };
    let (first, mut shell) = remote::ask(&args.call(), "send", &errand)?;
    let heard = listen_to(&mut shell, first);
    let broke = |e: std::io::Error| Failure::new(exit::FAILED, format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broke)?;
    let end = End { listener, identity, secret, session };
    let result = runtime.block_on(drive(end, &errand, shell, heard, args, report));
    // A write that hangs in a dying file system must not keep the command from ending.
    runtime.shutdown_timeout(Duration::from_secs(2));
    report.done(&result?);
    Ok(())
}

/// Passes on what the sender says, until it ends or makes no sense.
fn listen_to(shell: &mut Shell, first: News) -> Heard {
    let (hear, heard) = mpsc::unbounded_channel();
    let _ = hear.send(Ok(first));
    if let Some(mut from) = shell.from.take() {
        thread::spawn(move || {
            loop {
                let news = bootstrap::receive(&mut from);
                let ended = news.is_err();
                if hear.send(news).is_err() || ended {
                    return;
                }
            }
        });
    }
    heard
}

/// Runs the job beside its progress display, and ends the shell.
async fn drive(
    end: End,
    errand: &Errand,
    shell: Shell,
    mut heard: Heard,
    args: &Send,
    report: &Report,
) -> Result<Summary, Failure> {
    stop::not_at_file_limit();
    let dead_after = Duration::from_millis(errand.dead_after_ms.into());
    let host = &args.to.host;
    let mut line = Line { shell: Some(shell), args };
    let mut stop = std::pin::pin!(stop::requested(INTERRUPTED, true));
    let ready = tokio::select! {
        ready = ready(&mut heard, dead_after, &mut line) => ready,
        failure = &mut stop => Err(failure),
    };
    let result = match ready.and_then(|(key, bytes)| Ok((config(end, errand, key, host)?, bytes))) {
        Err(failure) => Err(failure),
        Ok((config, bytes)) => {
            report.set_image_bytes(bytes);
            let latest = Rc::new(Cell::new(Snapshot::default()));
            let shown = latest.clone();
            let progress = Progress::new(args, bytes, move || shown.get());
            let narrator = Narrator::new(args, report, &progress);
            let (end_job, ended) = oneshot::channel();
            let until = async {
                tokio::select! {
                    failure = stop => failure,
                    Ok(failure) = ended => failure,
                }
            };
            let work = receiver::run(config, until);
            let news = follow(&mut heard, &narrator, &latest);
            let work = both(work, news, end_job, dead_after, &mut line);
            let result = progress::beside(&progress, report, work).await;
            narrator.conclude(result)
        }
    };
    if let Some(shell) = line.shell.take() {
        let verbose = args.verbose;
        let _ = tokio::task::spawn_blocking(move || shell.end(HANG_UP, verbose)).await;
    }
    result
}

/// The shell, while it is there.
struct Line<'a> {
    shell: Option<Shell>,
    args: &'a Send,
}

impl Line<'_> {
    /// What the other host says is told with its name.
    fn says(&self, failure: Failure) -> Failure {
        // No sender talks this side into calling a failure a success.
        Failure::new(failure.exit.max(exit::FAILED), format!("{}: {}", self.args.to.host, failure.reason))
    }

    fn silent(&self, dead_after: Duration) -> Failure {
        let reason = format!("nothing heard for {} s: check that host", dead_after.as_secs());
        self.says(Failure::new(exit::FAILED, reason))
    }

    /// Nothing more comes: why.
    async fn lost(&mut self, e: &BootstrapError) -> Failure {
        let (host, verbose) = (&self.args.to.host, self.args.verbose);
        let (how, words) = match (e, self.shell.take()) {
            (BootstrapError::NoPeer(_), Some(shell)) => {
                tokio::task::spawn_blocking(move || shell.fate(verbose)).await.unwrap_or_default()
            }
            (_, shell) => {
                self.shell = shell;
                return Failure::new(exit::FAILED, format!("{host}: what it says cannot be read"));
            }
        };
        let words = if words.is_empty() { words } else { format!(" ({words})") };
        let reason = format!(
            "the remote shell to {host} {how} in the middle of the job{words}: check {host} and the way to it, then run the same command again"
        );
        Failure::new(exit::FAILED, reason)
    }
}

/// Waits until the sender has its images open: its key, and their size in bytes.
async fn ready(
    heard: &mut Heard,
    dead_after: Duration,
    line: &mut Line<'_>,
) -> Result<([u8; 32], u64), Failure> {
    // Nothing has been changed yet.
    let refused = |failure: Failure| Failure { exit: exit::REFUSED, ..failure };
    loop {
        match timeout(dead_after, heard.recv()).await {
            Ok(Some(Ok(News::Ready { fingerprint, image_bytes }))) => return Ok((fingerprint, image_bytes)),
            Ok(Some(Ok(News::Meter(_)))) => {}
            Ok(Some(Ok(News::Failed(failure)))) => return Err(line.says(failure)),
            Ok(Some(Err(e))) => return Err(refused(line.lost(&e).await)),
            Ok(Some(Ok(_)) | None) => return Err(refused(line.lost(&BootstrapError::Malformed).await)),
            Err(_) => return Err(refused(line.silent(dead_after))),
        }
    }
}

/// The receiver of the job that was asked for, and of no other.
fn config(end: End, errand: &Errand, key: [u8; 32], host: &str) -> Result<Config, Failure> {
    let crypto = |e: lanes::Error| Failure::new(exit::FAILED, e.to_string());
    let dead_after = Duration::from_millis(errand.dead_after_ms.into());
    let name = |path: &String| {
        Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
    };
    let terms = Terms {
        names: errand.images.iter().map(name).collect(),
        path: errand.path.clone(),
        lanes: errand.streams,
        chunk: errand.chunk,
        force: errand.force,
        dry_run: errand.dry_run,
        sync_window: errand.sync_window,
        readback: errand.readback,
        delta: errand.delta,
        chown: errand.chown.clone(),
    };
    let peer = Fingerprint(key);
    Ok(Config {
        listener: end.listener,
        keeper: Doorkeeper {
            config: tls::server(&end.identity, tls::pin(peer)).map_err(crypto)?,
            tuning: Tuning { unsent: 0, dead_after },
        },
        session: end.session,
        pass: Pass { transport: errand.transport, secret: end.secret, peer },
        engine: errand.engine.parse().map_err(|e| Failure::new(exit::USAGE, format!("{e}")))?,
        direct: errand.direct,
        memory: errand.memory,
        dead_after,
        patience: Duration::from_millis(errand.patience_ms.into()),
        asked: Some(Asked { of: host.to_owned(), terms }),
    })
}

/// How the sender's tale ends.
enum Tale {
    Done(Box<Summary>),
    Failed(Failure),
    Lost(BootstrapError),
}

/// Tells the user what the sender tells, to its end.
async fn follow(heard: &mut Heard, narrator: &Narrator<'_>, latest: &Cell<Snapshot>) -> Tale {
    loop {
        match heard.recv().await {
            Some(Ok(News::Meter(now))) => latest.set(*now),
            Some(Ok(News::Started { notices, theirs, peer })) => {
                narrator.tell(Event::Started { notices, theirs, peer });
            }
            Some(Ok(News::Overwriting(device))) => narrator.tell(Event::Overwriting(device)),
            Some(Ok(News::Stalled(what))) => narrator.tell(Event::Stalled(what)),
            Some(Ok(News::Committed { name, path, notices, theirs })) => {
                narrator.tell(Event::Committed { name, path, notices, theirs });
            }
            Some(Ok(News::Lost { connection, reason })) => {
                narrator.tell(Event::Lost { connection, reason });
            }
            Some(Ok(News::Restored { connection })) => narrator.tell(Event::Restored { connection }),
            Some(Ok(News::Done(summary))) => return Tale::Done(summary),
            Some(Ok(News::Failed(failure))) => return Tale::Failed(failure),
            Some(Err(e)) => return Tale::Lost(e),
            Some(Ok(News::Ready { .. })) | None => return Tale::Lost(BootstrapError::Malformed),
        }
    }
}

/// The job here and the sender's tale of it: done when both are, over when one is. The receiver's
/// reason is the one to show: it is its own, what the sender said to it, or what `end_job` is given.
async fn both(
    work: impl Future<Output = Result<(), Failure>>,
    tale: impl Future<Output = Tale>,
    end_job: oneshot::Sender<Failure>,
    dead_after: Duration,
    line: &mut Line<'_>,
) -> Result<Summary, Failure> {
    // The receiver may have added what it keeps.
    let alone = line.says(errand::alone());
    let alone = |failure: &Failure| failure.reason.starts_with(&alone.reason);
    let (mut work, mut tale) = (std::pin::pin!(work), std::pin::pin!(tale));
    let told = tokio::select! {
        done = &mut work => match done {
            // All is in place: only the figures are missing.
            Ok(()) => match timeout(dead_after, tale).await {
                Ok(told) => told,
                Err(_) => return Err(line.silent(dead_after)),
            },
            Err(failure) => {
                // What is in place already may still have to be told.
                return match timeout(GRACE, tale).await {
                    Ok(Tale::Lost(e)) if alone(&failure) => Err(line.lost(&e).await),
                    _ => Err(failure),
                };
            }
        },
        told = &mut tale => {
            let failure = match &told {
                Tale::Done(_) => None,
                Tale::Failed(failure) => Some(line.says(failure.clone())),
                // A Ctrl-C ends the shell as well, and is the better reason.
                Tale::Lost(e) => match timeout(GRACE, &mut work).await {
                    Ok(Err(failure)) if !alone(&failure) => return Err(failure),
                    Ok(_) => return Err(line.lost(e).await),
                    Err(_) => Some(line.lost(e).await),
                },
            };
            if let Some(failure) = failure {
                let _ = end_job.send(failure);
            }
            work.await?;
            told
        }
    };
    match told {
        Tale::Done(summary) => Ok(*summary),
        Tale::Failed(failure) => Err(line.says(failure)),
        Tale::Lost(e) => Err(line.lost(&e).await),
    }
}
