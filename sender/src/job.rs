//! One job from `Open` to the last commit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blockio::{Engine, EngineChoice, EngineKind, Pool, Stall};
use lanes::dial::Dialer;
use lanes::{Lane, message};
use proto::control::{Accept, Delta, Earlier, Failure, Open, ToReceiver, ToSender, Transport};
use proto::digest::Digests;
pub use proto::errand::Summary;
use proto::geometry::ChunkSize;
use proto::owner::Owner;
use proto::session::SenderSession;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::cause::{self, Cause, failure_of, unreachable_peer};
use crate::control::{Committed, Conversation, Ended};
use crate::digest::Digester;
use crate::known::Line;
use crate::lanes::{Place, join_all};
use crate::limit::Limit;
use crate::meter::Meter;
use crate::read::{DEPTH, Reader, WAITING};
pub(crate) use crate::shared::Shared;
use crate::source::Source;

/// What the receiver says may still be on its way when a connection breaks: wait so long for it. Our own
/// last word may take as long.
pub(crate) const REASON_GRACE: Duration = Duration::from_secs(3);
/// Units ready to be sent; data among them is bounded by the pool anyway.
const READY: usize = 256;
/// A read that takes so long is told of, and so long after that again.
const STALLED: Duration = Duration::from_secs(10);

/// How a job is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data lanes.
    pub streams: u32,
    /// Chunk size.
    pub chunk: ChunkSize,
    /// I/O engine.
    pub engine: EngineChoice,
    /// Read what the file system calls a hole, too.
    pub no_holes: bool,
    /// Bytes of buffers; `None`: what lanes and read depth need.
    pub memory: Option<u64>,
    /// Hash any amount of zeros for the `b3` digest.
    pub b3_always: bool,
    /// Destination as typed.
    pub path: String,
    /// Replace existing destinations.
    pub force: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// Bytes that may be written at the destination and not yet durable; `None`: it decides.
    pub sync_window: Option<u64>,
    /// The destination reads everything back from its disk before it is done.
    pub readback: bool,
    /// What becomes of older copies at the destination.
    pub delta: Delta,
    /// Who the copies are to belong to; `None`: whoever the sources belong to.
    pub chown: Option<Owner>,
    /// All lanes together send no faster than this, bit/s.
    pub limit: Option<u64>,
    /// A connection silent for so long is dead.
    pub dead_after: Duration,
    /// Connections that broke are made again for so long.
    pub patience: Duration,
}

/// What reads the sources. Worth having before any other host is asked.
#[derive(Debug)]
pub struct Disk {
    pool: Pool,
    engine: Engine,
}

/// A job ready to run.
#[derive(Debug)]
pub struct Job {
    /// Buffers and engine.
    pub disk: Disk,
    /// How the receiver's host is called in messages: two hosts have the same paths.
    pub host: String,
    /// The receiver asked for this job, and messages are for its user.
    pub asked_for: bool,
    /// What is moved.
    pub sources: Vec<Source>,
    /// How to connect.
    pub dialer: Dialer,
    /// Where the control connection may be made, best first.
    pub addresses: Vec<SocketAddr>,
    /// Where data lanes go, in turn; empty: where control went. Each is one way with the addresses
    /// that it may be reached by.
    pub via: Vec<Vec<SocketAddr>>,
    /// The rest.
    pub options: Options,
}

/// What happens on the way.
#[derive(Clone, Debug)]
pub enum Event {
    /// The job is accepted and starts: something the user should know, a sentence each.
    Started {
        /// Notices of this end.
        notices: Vec<String>,
        /// Notices of the receiver.
        theirs: Vec<String>,
        /// Where control is connected.
        peer: SocketAddr,
    },
    /// From now on this block device at the destination is overwritten: when the job fails it holds
    /// an incomplete copy.
    Overwriting(String),
    /// A read does not end: which, for how long, and what may help.
    Stalled(String),
    /// An image is in place.
    Committed {
        /// Its name.
        name: String,
        /// Where.
        path: String,
        /// What turned out on the way at this end.
        notices: Vec<String>,
        /// The same at the receiver.
        theirs: Vec<String>,
    },
    /// A connection broke, or fell silent, and is being made again.
    Lost {
        /// 0: control; else which of the data connections.
        connection: u32,
        /// How it broke.
        reason: String,
    },
    /// It is there again.
    Restored {
        /// As above.
        connection: u32,
    },
}

/// Which part of the job ended, and how.
pub(crate) enum Part {
    Reader(Result<(), Failure>),
    /// One of the places for lanes.
    Lane(Result<(), Failure>),
    Control(Ended),
    /// Of an image all of which is written.
    Digests(Result<(u32, Digests), Failure>),
}

/// Runs a job. Counters appear in `meter` while it runs, events go to `events`; when `stop` is
/// ready the job ends with its failure.
///
/// # Errors
/// The first cause, with its exit code; the receiver was told, or told us.
pub async fn run(
    job: Job,
    meter: Arc<Meter>,
    events: impl Fn(Event),
    stop: impl Future<Output = Failure>,
) -> Result<Summary, Failure> {
    let o = &job.options;
    let Disk { pool, engine } = &job.disk;
    let mut control = job
        .dialer
        .control(&job.addresses)
        .await
        .map_err(|e| unreachable_peer(&e, &job.addresses, job.asked_for))?;
    let peer = control.peer();
    let accept = open(&mut control, &job).await?;

    let mut notices: Vec<String> = job.sources.iter().flat_map(|s| s.notices().to_vec()).collect();
    if job.dialer.transport == Transport::Tcp {
        notices.push(
            "the data travels unencrypted (--transport tcp): whoever has access to the network can read it"
                .into(),
        );
    }
    notices.extend(engine.notices());
    if accept.earlier.len() != job.sources.len() {
        return Err(Failure::new(1, "the receiver broke the protocol: it accepted other images"));
    }
    events(Event::Started { notices, theirs: accept.notices, peer });
    let engines = (engine.kind().as_str().to_owned(), accept.engine);

    if o.dry_run {
        // The goodbye only spares the receiver a wait.
        let _ = timeout(REASON_GRACE, message::send(&mut control, &ToReceiver::Done)).await;
        let meter = meter.snapshot(true);
        return Ok(Summary { digests: BTreeMap::new(), engines, bottleneck: None, meter });
    }

    let sizes: Vec<u64> = job.sources.iter().map(|s| s.entry().size).collect();
    let session = SenderSession::new(job.dialer.epoch, sizes.len());
    let (shared, ends) = Shared::new(session, o.limit.map(Limit::new), meter.clone());
    for (image, earlier) in (0u32..).zip(&accept.earlier) {
        if matches!(earlier, Earlier::Complete { .. }) {
            shared.session().skip(image);
        }
    }
    let line = Line::new(shared.clone(), ends.answers);
    let digester = Digester::start(&sizes, o.chunk, o.b3_always)
        .map_err(|e| Failure::new(1, format!("cannot start the digest thread: {e}")))?;
    let sources: Arc<[Source]> = job.sources.clone().into();
    let mut parts: JoinSet<Part> = JoinSet::new();
    let (committed, mut commits) = mpsc::unbounded_channel();
    // A connection that is made again takes no longer to be tried than to be given up.
    let dialer = Dialer { patience: job.dialer.patience.min(o.dead_after), ..job.dialer.clone() };
    let conversation = Conversation {
        dialer: dialer.clone(),
        addresses: std::iter::once(peer)
            .chain(job.addresses.iter().copied().filter(|a| *a != peer))
            .collect(),
        dead_after: o.dead_after,
        patience: o.patience,
        queue: ends.queue,
        committed,
        shared: shared.clone(),
        done: false,
    };
    parts.spawn(async move { Part::Control(conversation.run(control).await) });
    let mut told = ends.told;

    // Of these the receiver was told to finish, and has not told that it did.
    let mut asked: Vec<String> = Vec::new();
    let work = async {
        let mut stop = std::pin::pin!(stop);
        let (ready, take) = async_channel::bounded(READY);
        let via = ways(&job.via, peer);
        let place = |(number, way): (u32, &Vec<SocketAddr>)| Place {
            number,
            dialer: job.dialer.clone(),
            way: way.clone(),
            chunk: o.chunk,
            dead_after: o.dead_after,
            patience: o.patience,
            host: job.host.clone(),
            queue: take.clone(),
            shared: shared.clone(),
        };
        let places: Vec<Place> = (1..=o.streams).zip(via.iter().cycle()).map(place).collect();
        drop(take);
        let mut joining = std::pin::pin!(join_all(&places, job.asked_for));
        let joined = loop {
            tokio::select! {
                joined = &mut joining => break joined.map_err(Cause::Ours)?,
                Some(part) = parts.join_next() => return Err(cause::too_early(part)),
                Some(event) = told.recv() => events(event),
                failure = &mut stop => return Err(Cause::Ours(failure)),
            }
        };
        for (place, lane) in places.iter().cloned().zip(joined) {
            let place = Place { dialer: dialer.clone(), ..place };
            parts.spawn(async move { Part::Lane(place.run(lane).await) });
        }
        let file = accept.in_place.is_none();
        accept.in_place.into_iter().for_each(|device| events(Event::Overwriting(device)));
        let reader = Reader {
            sources: sources.clone(),
            chunk: o.chunk,
            no_holes: o.no_holes,
            engine: engine.clone(),
            pool: pool.clone(),
            digester: digester.clone(),
            ready: ready.clone(),
            shared: shared.clone(),
        };
        let earlier = accept.earlier;
        let (mut digests, mut in_place) = (BTreeMap::new(), 0);
        for (source, earlier) in sources.iter().zip(&earlier) {
            if let Earlier::Complete { tree } = earlier {
                meter.resumed_bytes.add(source.entry().size);
                digests.insert(source.entry().name.clone(), Digests { tree: *tree, b3: None });
            }
        }
        let (again, returned) = (reader.clone(), ends.returned);
        parts.spawn(async move { Part::Reader(reader.run(earlier, line).await) });
        parts.spawn(async move { Part::Reader(again.again(returned).await) });
        let mut watchdog = interval(STALLED);
        loop {
            tokio::select! {
                _ = watchdog.tick() => {
                    engine.stalled(STALLED).iter().for_each(|stall| events(Event::Stalled(stalled(stall, engine))));
                }
                Some(part) = parts.join_next() => {
                    if let Some((image, announced)) = cause::settle(part)? {
                        let finish = shared.session().announce(image, announced.tree);
                        shared.say(finish);
                        let name = &sources[image as usize].entry().name;
                        // What a device holds is incomplete until it is known not to be.
                        asked.extend(file.then(|| name.clone()));
                        digests.insert(name.clone(), announced);
                    }
                }
                () = shared.progressed.notified() => {
                    if shared.session().all_written() {
                        // Nothing comes back any more: the lanes end.
                        ready.close();
                    }
                    for image in shared.session().take_finished() {
                        // A task of its own: zeros may still be being hashed.
                        let (digester, source) = (digester.clone(), sources[image as usize].clone());
                        parts.spawn(async move { Part::Digests(complete(image, source, digester).await) });
                    }
                }
                Some(event) = told.recv() => events(event),
                failure = &mut stop => return Err(Cause::Ours(failure)),
                Some(done) = commits.recv() => {
                    let name = &sources[done.image as usize].entry().name;
                    check(&done, digests.get(name))?;
                    asked.retain(|other| other != name);
                    let notices = sources[done.image as usize].late_notices();
                    let (name, path, theirs) = (name.clone(), done.path, done.notices);
                    events(Event::Committed { name, path, notices, theirs });
                    // Counted here: the session knows of a commit before its turn to be told comes.
                    in_place += 1;
                    if in_place == sources.len() {
                        return Ok(digests);
                    }
                }
            }
        }
    };
    match work.await {
        Ok(digests) => {
            // Answered, so that nothing but the images is left when this end is gone.
            say_at_last(ToReceiver::Done, &shared, &mut parts).await;
            let meter = meter.snapshot(true);
            // Lanes that only told of zeros waited for each other, not for a stage.
            let bottleneck = meter.bottleneck().filter(|_| meter.totals.written > 0);
            Ok(Summary { digests, engines, bottleneck, meter })
        }
        Err(cause) => {
            let failure = cause::failure(cause, &job.host, o.patience, &asked);
            say_at_last(ToReceiver::Abort(failure.clone()), &shared, &mut parts).await;
            Err(failure)
        }
    }
}

/// Buffers of the pool: one per lane, the reads in flight and waiting, and some ready in between.
fn slots(o: &Options) -> Result<usize, Failure> {
    let least = o.streams as usize + 2;
    let Some(memory) = o.memory else { return Ok(o.streams as usize + WAITING + 2 * DEPTH) };
    let slots = usize::try_from(memory / u64::from(o.chunk.bytes())).unwrap_or(usize::MAX);
    if slots < least {
        let need = least as u64 * u64::from(o.chunk.bytes());
        return Err(Failure::new(
            2,
            format!(
                "{} streams with chunks of {} need {need} bytes of buffers, --memory gives {memory}: fewer --streams or a smaller --chunk",
                o.streams, o.chunk
            ),
        ));
    }
    Ok(slots.min(o.streams as usize + 64))
}

/// What to say about a read that does not end, and to do about it.
fn stalled(stall: &Stall, engine: &Engine) -> String {
    let next = match engine.kind() {
        EngineKind::Uring => "look at the disk (dmesg); if it is well, end this and try --engine sync",
        EngineKind::Sync => "look at the disk (dmesg)",
    };
    format!("{stall}: {next}")
}

/// The ways of the data lanes. The address that control found to work stands for its way.
fn ways(via: &[Vec<SocketAddr>], peer: SocketAddr) -> Vec<Vec<SocketAddr>> {
    if via.is_empty() {
        return vec![vec![peer]];
    }
    via.iter().map(|way| if way.contains(&peer) { vec![peer] } else { way.clone() }).collect()
}

/// Sends `Open` and waits for the verdict.
async fn open(control: &mut Lane, job: &Job) -> Result<Accept, Failure> {
    let o = &job.options;
    let lost = |e: lanes::Error| Failure::new(1, format!("{}: {e} before the job began", job.host));
    let message = ToReceiver::Open(Open {
        job: job.dialer.session.0,
        epoch: job.dialer.epoch,
        chunk: o.chunk.bytes(),
        lanes: o.streams,
        path: o.path.clone(),
        force: o.force,
        dry_run: o.dry_run,
        sync_window: o.sync_window,
        readback: o.readback,
        delta: o.delta,
        chown: o.chown.clone(),
        images: job.sources.iter().map(|s| s.entry().clone()).collect(),
    });
    message::send(control, &message).await.map_err(lost)?;
    loop {
        // The receiver beats while it checks, so silence means that it is gone.
        match timeout(o.dead_after, message::receive::<ToSender>(control)).await {
            Ok(Ok(ToSender::Accept(accept))) => return Ok(accept),
            Ok(Ok(ToSender::Fail(failure))) => return Err(failure_of(&job.host, failure)),
            Ok(Ok(ToSender::Heartbeat)) => {}
            Ok(Ok(_)) => return Err(Failure::new(1, "the receiver answered out of turn")),
            Ok(Err(e)) => return Err(lost(e)),
            Err(_) => {
                let silent = lanes::Error::Silent { seconds: o.dead_after.as_secs() };
                return Err(cause::peer_lost(&job.host, &silent, &[]));
            }
        }
    }
}

impl Disk {
    /// Buffers and engine as the options ask.
    ///
    /// # Errors
    /// A sentence: exit code 2 when the options do not fit together, 3 when this system has not what
    /// they ask for.
    pub fn start(options: &Options) -> Result<Disk, Failure> {
        let refused = |e: blockio::Error| Failure::new(3, e.to_string());
        let pool = Pool::new(slots(options)?, options.chunk.bytes() as usize).map_err(refused)?;
        let engine = Engine::start(options.engine, DEPTH as u32, &pool).map_err(refused)?;
        Ok(Disk { pool, engine })
    }
}

/// The digests of an image all of which is written, once the source proved unchanged.
async fn complete(image: u32, source: Source, digester: Digester) -> Result<(u32, Digests), Failure> {
    let digests = digester.finish(image).await;
    let lost = || Failure::new(1, format!("parts of {} were never hashed", source.entry().name));
    let digests = digests.ok_or_else(lost)?;
    source.check_unchanged()?;
    Ok((image, digests))
}

fn check(done: &Committed, ours: Option<&Digests>) -> Result<(), Cause> {
    if ours.is_some_and(|d| d.tree == done.tree) {
        return Ok(());
    }
    Err(Cause::Ours(Failure::new(4, format!("{} differs from the source after the copy", done.path))))
}

/// Says the last word, and waits until it is said.
async fn say_at_last(message: ToReceiver, shared: &Shared, parts: &mut JoinSet<Part>) {
    if !shared.say(message) {
        return;
    }
    let said = async {
        while let Some(part) = parts.join_next().await {
            if matches!(part, Ok(Part::Control(_))) {
                // The last bytes leave before the process does.
                sleep(Duration::from_millis(10)).await;
                return;
            }
        }
    };
    let _ = timeout(REASON_GRACE, said).await;
}
