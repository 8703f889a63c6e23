//! One job: control connection, lanes, commits.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockio::{Engine, EngineChoice, Pool};
use lanes::Error;
use lanes::listen::{Doorkeeper, Pass};
use proto::control::{
    ANSWERS, Accept, CONTROL, Earlier, Failure, LANES_MAX, LaneId, Open, SessionId, ToReceiver, ToSender,
};
use proto::extents::RunSet;
use proto::frame::Header;
use proto::geometry::ChunkSize;
use proto::session::ReceiverSession;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use crate::base::Base;
use crate::conversation::{Conversation, Heard};
use crate::door::{self, Joined, Sessions};
use crate::ending::{self, Placed};
use crate::flush::{self, Window};
use crate::ground::Ground;
use crate::lane::{self, LaneEnd};
use crate::meter::Meter;
use crate::part::{self, Part};
use crate::peer::Peer;
use crate::quota::Lease;
use crate::readback::{self, Expected};
use crate::terms::Asked;
use crate::{leftover, prepare, resume};

/// The sender has so long to say goodbye at the end: it only has to hear ours.
const GOODBYE: Duration = Duration::from_secs(5);
/// The sender has so long to connect after the bootstrap, and to hear why the job failed.
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
    /// A connection silent for so long is dead.
    pub dead_after: Duration,
    /// A sender that is not heard may come back for so long.
    pub patience: Duration,
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
    pub(crate) patience: Duration,
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
        let mut session = self.session();
        epoch == self.epoch && session.open_lanes() < self.lanes as usize && session.open_lane(id).is_ok()
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
        patience: config.patience,
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
    let mut conversation = Conversation::new(control, dead_after);
    let result = serve(setting, sessions, &mut joined, &mut conversation, watch, &mut stop).await;
    let last = result.as_ref().err().map(|failure| ToSender::Fail(failure.clone()));
    let patience = if matches!(&result, Err(failure) if failure.exit == 6) { HURRY } else { PATIENCE };
    conversation.end(last, &mut joined, dead_after.min(patience), patience.min(GOODBYE)).await;
    result
}

async fn serve(
    mut setting: Setting,
    sessions: &Sessions,
    joined: &mut Joined,
    conversation: &mut Conversation,
    watch: &dyn Watch,
    mut stop: impl Future<Output = Failure> + Unpin,
) -> Result<(), Failure> {
    let sender = Peer::new(setting.asked.as_ref());
    let first = tokio::select! {
        first = conversation.hear() => first,
        failure = &mut stop => return Err(failure),
    };
    let mut open = match first {
        Heard::Said(ToReceiver::Open(open)) => open,
        Heard::Said(ToReceiver::Abort(failure)) => return Err(sender.says(failure)),
        Heard::Lost => return Err(sender.gone(conversation.absence().unwrap_or(&Error::Closed))),
        _ => return Err(Failure::new(1, "the sender did not open a job")),
    };
    let (session, times) = (setting.session, (setting.dead_after, setting.patience));
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
    conversation.say(ToSender::Accept(Accept { engine, notices, earlier, in_place }));
    if open.dry_run {
        return Ok(());
    }
    let mut placed = Placed::none(job.parts.len());
    for (image, earlier) in (0u32..).zip(&job.earlier) {
        if let Earlier::Complete { tree } = earlier {
            let part = &job.parts[image as usize];
            let (path, notices) = (part.path().display().to_string(), part.take_notices());
            placed.add(image, *tree, ToSender::Committed { image, tree: *tree, path, notices });
        }
    }
    placed.words.iter().for_each(|word| conversation.say(word.clone()));
    let result = tokio::select! {
        result = receive(&job, &sender, joined, conversation, times, watch, &mut placed) => result,
        failure = stop => Err(failure),
    };
    match result {
        Ok(goodbye) => {
            ending::done(&job, &placed, goodbye).await;
            conversation.say(ToSender::Done);
            Ok(())
        }
        Err(failure) => Err(ending::unfinished(&job, &placed, failure).await),
    }
}

/// The main loop: returns when the sender says that it is done. `times`: after which silence a
/// connection is dead, and for how long a sender that is not heard may come back. `placed`: the
/// images that are in place.
async fn receive(
    job: &Arc<Receiving>,
    sender: &Peer,
    joined: &mut Joined,
    conversation: &mut Conversation,
    (dead_after, patience): (Duration, Duration),
    watch: &dyn Watch,
    placed: &mut Placed,
) -> Result<ending::Goodbye, Failure> {
    let mut tasks: JoinSet<Task> = JoinSet::new();
    let flusher = job.clone();
    tasks.spawn(async move { Task::Flusher(flush::run(flusher).await) });
    // Lanes whose tasks run, and how to tell one that its sender has lost it.
    let mut lanes: BTreeMap<LaneId, Option<oneshot::Sender<()>>> = BTreeMap::new();
    let mut finishing = vec![false; job.parts.len()];
    // Answers; one that is lost is asked for again.
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut tick = interval(STAGES);
    let (mut held, mut hold) = (false, std::pin::pin!(sleep(ACK_EVERY)));
    let broke = |e: &dyn std::fmt::Display| Failure::new(1, format!("the sender broke the protocol: {e}"));
    loop {
        let deadline = conversation.deadline(lanes.len(), patience);
        tokio::select! {
            Some((id, lane)) = joined.recv() => {
                if id == CONTROL {
                    conversation.join(lane);
                } else if job.session().is_open(id) {
                    let (stop, lost) = oneshot::channel();
                    lanes.insert(id, Some(stop));
                    let job = job.clone();
                    tasks.spawn(async move { Task::Lane(id, lane::run(id, lane, job, dead_after, lost).await) });
                }
            }
            Some(task) = tasks.join_next() => match task {
                Ok(Task::Lane(_, Err(LaneEnd::Job(failure))) | Task::Flusher(failure)) => return Err(failure),
                Ok(Task::Lane(id, ended)) => {
                    lanes.remove(&id);
                    if let Err(LaneEnd::Connection(e)) = ended {
                        conversation.ended(&e);
                    }
                    let closed = job.session().close_lane(id).map_err(|e| broke(&e))?;
                    conversation.say(ToSender::LaneClosed(closed));
                }
                Ok(Task::Commit(image, done)) => {
                    let tree = done?;
                    let part = &job.parts[image as usize];
                    acknowledge(job, conversation);
                    watch.committed(part.path());
                    let path = part.path().display().to_string();
                    let notices = part.take_notices();
                    conversation.say(ToSender::Stages(job.meter.stages()));
                    let done = ToSender::Committed { image, tree, path, notices };
                    placed.add(image, tree, done.clone());
                    conversation.say(done);
                }
                Ok(Task::Told(told)) => told?,
                Err(e) => return Err(Failure::new(1, format!("a task broke down: {e}"))),
            },
            Some(answer) = told.recv() => conversation.say(answer),
            heard = conversation.hear() => {
                let message = match heard {
                    Heard::Said(message) => message,
                    Heard::SaidAnew(message) => {
                        job.session().standing().into_iter().for_each(|word| conversation.say(word));
                        placed.words.iter().for_each(|word| conversation.say(word.clone()));
                        message
                    }
                    Heard::Lost => match conversation.absence() {
                        Some(e) if e.is_damage() => {
                            return Err(Failure::new(4, format!("control connection: {e}")));
                        }
                        Some(Error::Message(e)) => return Err(broke(e)),
                        _ => {
                            // The same command may come before this job has given up.
                            ending::seal(job, placed).await;
                            continue;
                        }
                    },
                };
                match message {
                    // Said once more after a new connection, it changes nothing.
                    ToReceiver::Finish { image, .. } if finishing.get(image as usize) == Some(&true) => {}
                    ToReceiver::Finish { image, tree } => {
                        let ours = job.session().finish(image).map_err(|e| broke(&e))?;
                        finishing[image as usize] = true;
                        let job = job.clone();
                        tasks.spawn(async move { Task::Commit(image, commit(&job, image, ours, tree).await) });
                    }
                    ToReceiver::LaneLost(id) => match lanes.get_mut(&id) {
                        Some(stop) => drop(stop.take()),
                        None => {
                            let closed = job.session().close_lane(id).map_err(|e| broke(&e))?;
                            conversation.say(ToSender::LaneClosed(closed));
                        }
                    },
                    ToReceiver::Done if placed.all() => {
                        return Ok(ending::Goodbye::Said);
                    }
                    ToReceiver::Abort(failure) => return Err(sender.says(failure)),
                    ToReceiver::Heartbeat => {}
                    ToReceiver::Ask { image, from } => {
                        let (job, say) = (job.clone(), tell.clone());
                        tasks.spawn(async move { Task::Told(answer(&job, image, from, &say).await) });
                    }
                    _ => return Err(broke(&"a message out of turn")),
                }
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                conversation.give_up();
                // Everything is in place: only the goodbye is missing.
                if placed.all() {
                    return Ok(ending::Goodbye::Missing);
                }
                let reason = conversation.absence().unwrap_or(&Error::Closed);
                return Err(match conversation.is_gone(lanes.len()) {
                    true => sender.gone(reason),
                    false => sender.stays_away(reason, patience),
                });
            }
            () = job.acks.notified(), if !held => {
                acknowledge(job, conversation);
                held = true;
                hold.as_mut().reset(Instant::now() + ACK_EVERY);
            }
            () = &mut hold, if held => held = false,
            _ = tick.tick() => {
                conversation.say(ToSender::Stages(job.meter.stages()));
                // Whoever comes anew knows better than to wait for a sender that may be gone for good.
                if conversation.absence().is_some() && job.parts.iter().any(|part| leftover::is_wanted(&part.image)) {
                    conversation.give_up();
                    return Err(Failure::new(6, "another attempt of the same job takes over"));
                }
            }
        }
    }
}

fn acknowledge(job: &Receiving, conversation: &Conversation) {
    for lanes in job.session().take_acks().chunks(LANES_MAX as usize) {
        conversation.say(ToSender::Ack { lanes: lanes.to_vec() });
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
async fn answer(
    job: &Receiving,
    image: u32,
    mut from: u64,
    say: &mpsc::UnboundedSender<ToSender>,
) -> Result<(), Failure> {
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
