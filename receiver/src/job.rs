//! One job: control connection, lanes, commits.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockio::{Engine, EngineChoice, Pool};
use lanes::listen::{Doorkeeper, Pass};
use lanes::{Error, Lane, message};
use proto::control::{ANSWERS, Accept, Earlier, Failure, LaneId, Open, SessionId, ToReceiver, ToSender};
use proto::extents::RunSet;
use proto::frame::Header;
use proto::geometry::ChunkSize;
use proto::session::ReceiverSession;
use tokio::io::ReadHalf;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::base::Base;
use crate::door::{self, Joined, Sessions};
use crate::flush::{self, Window};
use crate::ground::Ground;
use crate::lane::{self, LaneEnd};
use crate::meter::Meter;
use crate::part::{self, Part};
use crate::peer::Peer;
use crate::quota::Lease;
use crate::readback::{self, Expected};
use crate::terms::Asked;
use crate::{ending, prepare, resume};

/// The sender has so long to say goodbye at the end: it only has to hear ours.
const GOODBYE: Duration = Duration::from_secs(5);
/// The sender has so long to connect after the bootstrap.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same when this end was told to end, and whoever did that waits.
const HURRY: Duration = Duration::from_secs(4);
/// How often the stages' counters go to the sender.
const STAGES: Duration = Duration::from_millis(250);

/// Acknowledgements wait for so long after the last one: they are cumulative, and each wakes four
/// tasks at both ends.
const ACK_EVERY: Duration = Duration::from_millis(10);

/// How a receiver of one job is run.
#[derive(Debug)]
pub struct Config {
    /// Bound and listening.
    pub listener: TcpListener,
    /// Who is let in.
    pub keeper: Doorkeeper,
    /// The session.
    pub session: SessionId,
    /// What its lanes have to prove.
    pub pass: Pass,
    /// I/O engine.
    pub engine: EngineChoice,
    /// Open with O_DIRECT.
    pub direct: bool,
    /// Bytes of buffers; `None`: what lanes and write depth need.
    pub memory: Option<u64>,
    /// A sender silent for so long is dead.
    pub dead_after: Duration,
    /// Set when this side asked for the job.
    pub asked: Option<Asked>,
}

/// How one job is run.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) session: SessionId,
    pub(crate) engine: EngineChoice,
    pub(crate) direct: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) dead_after: Duration,
    /// What the user should know anyway, a sentence each.
    pub(crate) notices: Vec<String>,
    /// What a service gives; `None`: all that this process may.
    pub(crate) allowance: Option<Allowance>,
    /// Set when this side asked for the job.
    pub(crate) asked: Option<Asked>,
}

/// What a service gives to a job.
#[derive(Debug)]
pub(crate) struct Allowance {
    pub(crate) ground: Ground,
    pub(crate) lease: Lease,
}

/// What happens in a job, for those who watch.
pub(crate) trait Watch: Send + Sync {
    /// It was accepted.
    fn begun(&self, _: &Open, _: &Arc<Receiving>) {}
    /// An image is in place.
    fn committed(&self, _: &Path) {}
}

/// Nobody watches.
struct Unwatched;

impl Watch for Unwatched {}

/// State shared by the tasks of one job.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) chunk: ChunkSize,
    pub(crate) epoch: u32,
    pub(crate) lanes: u32,
    pub(crate) parts: Vec<Arc<Part>>,
    /// What an earlier attempt left of each image.
    pub(crate) earlier: Vec<Earlier>,
    /// Of it, the granules that need not come again.
    pub(crate) covered: Vec<Arc<RunSet>>,
    /// What the destination had before, where that is of use.
    pub(crate) bases: Vec<Option<Arc<Base>>>,
    pub(crate) pool: Pool,
    pub(crate) engine: Engine,
    pub(crate) meter: Meter,
    pub(crate) window: Window,
    /// What the disk is to be asked for in the end, if it is.
    pub(crate) readback: Option<Expected>,
    /// There may be something to acknowledge.
    pub(crate) acks: Notify,
    pub(crate) session: Mutex<ReceiverSession>,
    /// What the job takes of a service's limits: as long as anything of the above is there.
    pub(crate) _lease: Option<Lease>,
}

impl Receiving {
    /// Whether a data lane may join; it then has.
    pub(crate) fn welcomes(&self, id: LaneId, epoch: u32) -> bool {
        epoch == self.epoch && id.0 <= self.lanes && self.session().open_lane(id).is_ok()
    }

    pub(crate) fn session(&self) -> MutexGuard<'_, ReceiverSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of data that arrived.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.meter.received_bytes.sum()
    }

    /// A unit is verified and written.
    pub(crate) fn written(&self, id: LaneId, header: &Header) {
        self.session().written(id, header);
        if let proto::frame::Body::Data { raw_len, .. } = header.body {
            self.window.wrote(u64::from(raw_len));
        }
        self.acks.notify_one();
    }
}

/// What runs beside the main loop, and how it ended.
enum Task {
    Lane(LaneId, Result<(), LaneEnd>),
    Commit(u32, Result<[u8; 32], Failure>),
    Flusher(Failure),
    /// What the sender asked for.
    Told(Result<(), Failure>),
}

/// Receives one job. Returns when every image is in place, or, with its failure, when `stop` is
/// ready.
///
/// # Errors
/// The first cause, with its exit code; the sender was told, if it can be reached.
pub async fn run(config: Config, stop: impl Future<Output = Failure>) -> Result<(), Failure> {
    let sessions = Arc::new(Sessions::default());
    let joined = sessions.open(config.session, config.pass);
    let listener = tokio::net::TcpListener::from_std(config.listener)
        .map_err(|e| Failure::new(1, format!("cannot listen: {e}")))?;
    let acceptor = tokio::spawn(door::keep(listener, config.keeper, sessions.clone(), |_, _| {}));
    let setting = Setting {
        session: config.session,
        engine: config.engine,
        direct: config.direct,
        memory: config.memory,
        dead_after: config.dead_after,
        notices: vec![],
        allowance: None,
        asked: config.asked,
    };
    let result = session(setting, &sessions, joined, &Unwatched, stop).await;
    acceptor.abort();
    result
}

/// Runs the job of one session, which is open.
pub(crate) async fn session(
    setting: Setting,
    sessions: &Sessions,
    mut joined: Joined,
    watch: &dyn Watch,
    stop: impl Future<Output = Failure>,
) -> Result<(), Failure> {
    let mut stop = std::pin::pin!(stop);
    let control = tokio::select! {
        arrived = timeout(PATIENCE, joined.recv()) => match arrived {
            Ok(Some((_, lane))) => lane,
            _ => {
                let reason = format!("the sender did not connect within {} s", PATIENCE.as_secs());
                return Err(Failure::new(1, reason));
            }
        },
        failure = &mut stop => return Err(failure),
    };
    let dead_after = setting.dead_after;
    let (from, to) = tokio::io::split(control);
    let (say, queue) = mpsc::unbounded_channel();
    let speaker = tokio::spawn(message::speak(to, dead_after, queue, ToSender::Heartbeat));
    let (hear, mut heard) = mpsc::channel(16);
    let ear = tokio::spawn(listen(from, dead_after, hear));
    let work = serve(setting, sessions, &mut joined, &say, &mut heard, watch, &mut stop);
    let result = work.await;
    if let Err(failure) = &result {
        let _ = say.send(ToSender::Fail(failure.clone()));
    }
    drop(say);
    let patience = if matches!(&result, Err(failure) if failure.exit == 6) { HURRY } else { PATIENCE };
    let _ = timeout(dead_after.min(patience), speaker).await;
    // The sender closes first, so that its last word is not lost to a reset.
    let _ = timeout(patience.min(GOODBYE), async { while heard.recv().await.is_some() {} }).await;
    ear.abort();
    result
}

type Say = mpsc::UnboundedSender<ToSender>;
pub(crate) type Heard = mpsc::Receiver<Result<ToReceiver, Error>>;

async fn serve(
    mut setting: Setting,
    sessions: &Sessions,
    joined: &mut Joined,
    say: &Say,
    heard: &mut Heard,
    watch: &dyn Watch,
    mut stop: impl Future<Output = Failure> + Unpin,
) -> Result<(), Failure> {
    let sender = Peer::new(setting.asked.as_ref());
    let first = tokio::select! {
        first = heard.recv() => first,
        failure = &mut stop => return Err(failure),
    };
    let mut open = match first {
        Some(Ok(ToReceiver::Open(open))) => open,
        Some(Ok(ToReceiver::Abort(failure))) => return Err(sender.says(failure)),
        Some(Err(e)) => return Err(sender.gone(&e)),
        _ => return Err(Failure::new(1, "the sender did not open a job")),
    };
    let session = setting.session;
    let mut notices = std::mem::take(&mut setting.notices);
    let prepared = tokio::task::spawn_blocking(move || {
        let job = prepare::prepare(&mut open, &mut setting)?;
        Ok((job, open))
    });
    let prepared =
        prepared.await.unwrap_or_else(|e| Err(Failure::new(1, format!("the preflight broke down: {e}"))))?;
    let (job, open) = prepared;
    let job = Arc::new(job);
    sessions.begin(&session, job.clone());
    watch.begun(&open, &job);
    notices.extend(job.engine.notices());
    notices.extend(job.parts.iter().flat_map(|part| part.take_notices()));
    let engine = job.engine.kind().as_str().to_owned();
    let in_place = job.parts.iter().find_map(|part| part.in_place());
    let earlier = job.earlier.clone();
    let _ = say.send(ToSender::Accept(Accept { engine, notices, earlier, in_place }));
    if open.dry_run {
        return Ok(());
    }
    let mut committed: Vec<Option<[u8; 32]>> = vec![None; job.parts.len()];
    for (image, earlier) in (0u32..).zip(&job.earlier) {
        if let Earlier::Complete { tree } = earlier {
            let part = &job.parts[image as usize];
            committed[image as usize] = Some(*tree);
            let (path, notices) = (part.path().display().to_string(), part.take_notices());
            let _ = say.send(ToSender::Committed { image, tree: *tree, path, notices });
        }
    }
    let result = tokio::select! {
        result = receive(&job, &sender, joined, say, heard, watch, &mut committed) => result,
        failure = stop => Err(failure),
    };
    match result {
        Ok(heard) => {
            ending::done(&job, &committed, heard).await;
            let _ = say.send(ToSender::Done);
            Ok(())
        }
        Err(failure) => Err(ending::unfinished(&job, &committed, failure).await),
    }
}

/// The main loop: returns when the sender says that it is done.
async fn receive(
    job: &Arc<Receiving>,
    sender: &Peer,
    joined: &mut mpsc::Receiver<(LaneId, Lane)>,
    say: &Say,
    heard: &mut Heard,
    watch: &dyn Watch,
    committed: &mut [Option<[u8; 32]>],
) -> Result<ending::Goodbye, Failure> {
    let mut tasks: JoinSet<Task> = JoinSet::new();
    let flusher = job.clone();
    tasks.spawn(async move { Task::Flusher(flush::run(flusher).await) });
    let mut tick = interval(STAGES);
    let (mut held, mut hold) = (false, std::pin::pin!(sleep(ACK_EVERY)));
    loop {
        tokio::select! {
            Some((id, lane)) = joined.recv() => {
                let job = job.clone();
                tasks.spawn(async move { Task::Lane(id, lane::run(id, lane, job).await) });
            }
            Some(task) = tasks.join_next() => match task {
                Ok(Task::Lane(id, Ok(()))) => {
                    let closed = job.session().close_lane(id);
                    if let Some(ack) = closed {
                        let _ = say.send(ToSender::LaneClosed(ack));
                    }
                }
                Ok(Task::Lane(id, Err(LaneEnd::Connection(e)))) => return Err(sender.better_reason(id, &e, heard).await),
                Ok(Task::Lane(_, Err(LaneEnd::Job(failure))) | Task::Flusher(failure)) => return Err(failure),
                Ok(Task::Commit(image, done)) => {
                    let tree = done?;
                    let part = &job.parts[image as usize];
                    committed[image as usize] = Some(tree);
                    acknowledge(job, say);
                    watch.committed(part.path());
                    let path = part.path().display().to_string();
                    let notices = part.take_notices();
                    let _ = say.send(ToSender::Stages(job.meter.stages()));
                    let _ = say.send(ToSender::Committed { image, tree, path, notices });
                }
                Ok(Task::Told(told)) => told?,
                Err(e) => return Err(Failure::new(1, format!("a task broke down: {e}"))),
            },
            message = heard.recv() => match message {
                Some(Ok(ToReceiver::Finish { image, tree })) => {
                    let ours = job.session().finish(image);
                    let ours = ours.map_err(|e| Failure::new(1, format!("the sender broke the protocol: {e}")))?;
                    let job = job.clone();
                    tasks.spawn(async move { Task::Commit(image, commit(&job, image, ours, tree).await) });
                }
                Some(Ok(ToReceiver::Done)) if committed.iter().all(Option::is_some) => {
                    return Ok(ending::Goodbye::Said);
                }
                Some(Ok(ToReceiver::Abort(failure))) => return Err(sender.says(failure)),
                Some(Ok(ToReceiver::Heartbeat)) => {}
                Some(Ok(ToReceiver::Ask { image, from })) => {
                    let (job, say) = (job.clone(), say.clone());
                    tasks.spawn(async move { Task::Told(answer(&job, image, from, &say).await) });
                }
                Some(Ok(_)) => return Err(Failure::new(1, "the sender broke the protocol: a message out of turn")),
                Some(Err(Error::Closed)) if committed.iter().all(Option::is_some) => {
                    return Ok(ending::Goodbye::Missing);
                }
                Some(Err(e)) => return Err(sender.gone(&e)),
                None => return Err(Failure::new(1, "the sender went away without a reason")),
            },
            () = job.acks.notified(), if !held => {
                acknowledge(job, say);
                held = true;
                hold.as_mut().reset(Instant::now() + ACK_EVERY);
            }
            () = &mut hold, if held => held = false,
            _ = tick.tick() => {
                let _ = say.send(ToSender::Stages(job.meter.stages()));
            }
        }
    }
}

fn acknowledge(job: &Receiving, say: &Say) {
    let lanes = job.session().take_acks();
    if !lanes.is_empty() {
        let _ = say.send(ToSender::Ack { lanes });
    }
}

/// Makes an image durable, compares, gives it its name.
async fn commit(
    job: &Arc<Receiving>,
    image: u32,
    ours: [u8; 32],
    theirs: [u8; 32],
) -> Result<[u8; 32], Failure> {
    flush::flush(job, Some(image)).await?;
    let part = &job.parts[image as usize];
    if ours != theirs {
        let name = &part.entry.name;
        let reason = format!("{name}: what arrived differs from what was read{}", part.not_kept());
        return Err(Failure::new(4, reason));
    }
    if let Some(expected) = &job.readback {
        readback::check(job, image, expected).await?;
    }
    // Of one image alone the sender will know.
    part.commit(&job.engine, ours, job.parts.len() > 1).await?;
    Ok(ours)
}

/// Tells what there is since an earlier attempt, or in an older copy.
async fn answer(job: &Receiving, image: u32, mut from: u64, say: &Say) -> Result<(), Failure> {
    if let Some(Some(base)) = job.bases.get(image as usize) {
        return base.tell(from, say).await;
    }
    let broken = || Failure::new(1, "the sender broke the protocol: it asks for what there is not");
    let covered = job.covered.get(image as usize).ok_or_else(broken)?.clone();
    let part = job.parts.get(image as usize).ok_or_else(broken)?;
    let ledger = part.logbook.as_ref().and_then(|l| l.ledger()).ok_or_else(broken)?;
    let say = say.clone();
    part::blocking(move || {
        for _ in 0..ANSWERS {
            let (runs, next) = resume::known(&ledger, &covered, from)
                .map_err(|e| Failure::new(1, format!("{}: {e}", ledger.path().display())))?;
            let _ = say.send(ToSender::Known { image, from, runs, next });
            let Some(next) = next else { break };
            from = next;
        }
        Ok(())
    })
    .await
}

/// Passes on what the sender says until it ends or falls silent.
async fn listen(
    mut from: ReadHalf<Lane>,
    dead_after: Duration,
    hear: mpsc::Sender<Result<ToReceiver, Error>>,
) {
    loop {
        let message = message::receive_alive(&mut from, dead_after).await;
        let ended = message.is_err();
        if hear.send(message).await.is_err() || ended {
            return;
        }
    }
}
