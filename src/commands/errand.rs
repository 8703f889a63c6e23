//! `vmferry send --once --stdio`: the sending end of a pull, for the receiver that started us.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockio::EngineChoice;
use lanes::dial::Dialer;
use lanes::identity::{Fingerprint, Identity, random};
use lanes::tls;
use lanes::tune::{SourcePorts, Tuning};
use proto::control::{Failure, LANES_MAX};
use proto::errand::{Errand, News};
use proto::geometry::ChunkSize;
use sender::job::Event;
use sender::{Disk, Job, Meter, Options, Summary};
use tokio::sync::Notify;

use super::{receive, send};
use crate::{bootstrap, exit, remote, stop};

const BY_HAND: &str =
    "this is the sending end of a pull: 'vmferry send HOST:IMAGE FOLDER' on the other host starts it";
const INTERRUPTED: &str = "the sender was told to end: run the same command again";
/// How often there is news, a sign of life at least.
const NEWS: Duration = Duration::from_millis(100);
/// Without its receiver a sender has so long for a goodbye.
const ABANDONED: Duration = Duration::from_secs(4);

/// Runs the errand.
pub fn run() -> ExitCode {
    let errand: Errand = match receive::request(BY_HAND) {
        Ok(errand) => errand,
        Err(code) => return code,
    };
    let way = send::make_way(errand.nice);
    let meter = Arc::new(Meter::default());
    let abandoned = Arc::new(Notify::new());
    end_with_the_shell(abandoned.clone());
    let teller = Teller::start(meter.clone(), abandoned.clone());
    let (news, code) = match way.and_then(|()| serve(&errand, meter, &teller, abandoned)) {
        Ok(summary) => (News::Done(Box::new(summary)), exit::DONE),
        Err(failure) => (News::Failed(failure.clone()), failure.exit),
    };
    teller.tell(news);
    teller.finish();
    ExitCode::from(code)
}

/// A sender whose shell is gone has nobody to send to: it says goodbye to the receiver, and ends even
/// if a disk or the network holds it up. It leaves nothing behind, since sources are only read.
fn end_with_the_shell(abandoned: Arc<Notify>) {
    thread::spawn(move || {
        // Nothing comes here after the errand.
        let _ = io::stdin().lock().read(&mut [0]);
        abandoned.notify_one();
        thread::sleep(ABANDONED);
        std::process::exit(exit::FAILED.into());
    });
}

fn serve(
    errand: &Errand,
    meter: Arc<Meter>,
    teller: &Teller,
    abandoned: Arc<Notify>,
) -> Result<Summary, Failure> {
    let broke = |e: lanes::Error| Failure::new(exit::FAILED, e.to_string());
    let options = options(errand)?;
    let paths = errand.images.iter().map(|path| at_home(path)).collect::<Result<Vec<_>, _>>()?;
    let sources = send::open(&paths, errand.check_format, errand.direct, errand.force)?;
    let disk = Disk::start(&options)?;
    let mut via = remote::via(&errand.via, errand.family)?;
    via.iter_mut().flatten().for_each(|address| address.set_port(errand.port));
    let addresses = if via.is_empty() { candidates(errand)? } else { via.concat() };
    let identity = Identity::one_time().map_err(broke)?;
    let dialer = Dialer {
        config: tls::client(&identity, tls::pin(Fingerprint(errand.fingerprint))).map_err(broke)?,
        transport: errand.transport,
        secret: errand.secret.clone(),
        session: errand.session,
        epoch: 1,
        ports: SourcePorts::starting_at(u16::from_le_bytes(random().map_err(broke)?)),
        tuning: Tuning { unsent: errand.chunk, dead_after: options.dead_after },
        patience: remote::CONNECT,
    };
    let image_bytes = sources.iter().map(|source| source.entry().size).sum();
    // In the words of whoever reads the messages.
    let host = "this host".to_owned();
    let job = Job { disk, host, asked_for: true, sources, dialer, addresses, via, options };
    teller.tell(News::Ready { fingerprint: identity.fingerprint().0, image_bytes });

    let failed = |e: io::Error| Failure::new(exit::FAILED, format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let ended = async {
        tokio::select! {
            // A shell that hangs up closes standard input.
            failure = stop::requested(INTERRUPTED, false) => failure,
            () = abandoned.notified() => alone(),
        }
    };
    let result = runtime.block_on(sender::run(job, meter, |event| teller.tell(news(event)), ended));
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

/// What a sender says whose shell is gone; how that went is known at the other end of it.
pub fn alone() -> Failure {
    Failure::new(exit::FAILED, "the remote shell ended")
}

fn options(errand: &Errand) -> Result<Options, Failure> {
    let refused = |reason: String| Failure::new(exit::REFUSED, reason);
    let engine: EngineChoice = errand.engine.parse().map_err(|e| refused(format!("{e}")))?;
    if !(1..=LANES_MAX).contains(&errand.streams) {
        return Err(refused(format!("{} streams are not possible: 1 to {LANES_MAX}", errand.streams)));
    }
    Ok(Options {
        streams: errand.streams,
        chunk: ChunkSize::new(errand.chunk.into()).map_err(refused)?,
        engine,
        no_holes: errand.no_holes,
        memory: errand.memory,
        b3_always: errand.b3_always,
        path: errand.path.clone(),
        force: errand.force,
        dry_run: errand.dry_run,
        sync_window: errand.sync_window,
        readback: errand.readback,
        delta: errand.delta,
        chown: errand.chown.clone(),
        limit: errand.limit,
        dead_after: Duration::from_millis(errand.dead_after_ms.into()),
        patience: Duration::from_millis(errand.patience_ms.into()),
    })
}

/// `~/` as a shell would have it; no shell ever sees the path.
pub fn at_home(path: &str) -> Result<PathBuf, Failure> {
    let Some(rest) = path.strip_prefix("~/") else { return Ok(path.into()) };
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(PathBuf::from(home).join(rest)),
        None => Err(Failure::new(
            exit::REFUSED,
            format!("{path}: HOME is not set for this login: give the whole path"),
        )),
    }
}

/// Where the receiver may be, best first: where the remote shell came from, which only this end
/// knows, then its interfaces. The pinned key refuses every wrong one.
fn candidates(errand: &Errand) -> Result<Vec<SocketAddr>, Failure> {
    // "client-address client-port ...", ssh(1).
    let shell = ["SSH_CONNECTION", "SSH_CLIENT"].into_iter().find_map(|name| std::env::var(name).ok());
    let came_from = shell.iter().filter_map(|words| words.split_whitespace().next());
    let mut all: Vec<SocketAddr> = Vec::new();
    for name in came_from.chain(errand.addresses.iter().map(String::as_str)) {
        for address in remote::resolve(name, errand.port).into_iter().flatten() {
            if errand.family.has(&address) && !all.contains(&address) {
                all.push(address);
            }
        }
    }
    if all.is_empty() {
        return Err(remote::no_address("this host", remote::none_of(errand.family)));
    }
    Ok(all)
}

fn news(event: Event) -> News {
    match event {
        Event::Started { notices, theirs, peer } => News::Started { notices, theirs, peer },
        Event::Overwriting(device) => News::Overwriting(device),
        Event::Stalled(what) => News::Stalled(what),
        Event::Committed { name, path, notices, theirs } => News::Committed { name, path, notices, theirs },
        Event::Lost { connection, reason } => News::Lost { connection, reason },
        Event::Restored { connection } => News::Restored { connection },
    }
}

/// Tells the receiver how it goes, on a thread: a shell that does not take it holds up no job.
struct Teller {
    queue: Mutex<mpsc::Sender<News>>,
    thread: JoinHandle<()>,
}

impl Teller {
    fn start(meter: Arc<Meter>, abandoned: Arc<Notify>) -> Teller {
        let (queue, due) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut news = News::Meter(Box::default());
            loop {
                if bootstrap::send(&mut io::stdout(), &news).is_err() {
                    abandoned.notify_one();
                    return;
                }
                news = match due.recv_timeout(NEWS) {
                    Ok(news) => news,
                    Err(RecvTimeoutError::Timeout) => News::Meter(Box::new(meter.snapshot(false))),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
            }
        });
        Teller { queue: Mutex::new(queue), thread }
    }

    fn tell(&self, news: News) {
        // Without a reader the job ends anyway.
        let _ = self.queue.lock().unwrap_or_else(PoisonError::into_inner).send(news);
    }

    /// Waits until all is told. A shell that takes nothing any more ends, and the process with it.
    fn finish(self) {
        drop(self.queue);
        let _ = self.thread.join();
    }
}
