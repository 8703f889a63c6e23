//! A receiver that stays: holders of known keys ask it for sessions.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockio::EngineChoice;
use lanes::identity::{Fingerprint, Identity, random};
use lanes::listen::{Doorkeeper, Pass};
use lanes::tls::{self, Trust};
use lanes::tune::Tuning;
use lanes::{Error, Lane, message};
use proto::control::{Bootstrap, BootstrapReply, Failure, Open, SessionId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::door::{self, Sessions};
use crate::ground::Ground;
use crate::job::{self, Allowance, Receiving, Setting, Watch};
use crate::quota::{Lease, Limits, Quota};
use crate::rules::{Book, Rule};

/// A caller has so long to say what it wants.
const REQUEST: Duration = Duration::from_secs(10);
/// Callers that wait to be heard.
const CALLERS: usize = 64;
/// Jobs have so long to tell their senders of the service's end.
const GOODBYE: Duration = Duration::from_secs(10);
/// What a peer may choose as the time after which silence means death: 3 s to an hour.
const DEAD_AFTER_MS: std::ops::RangeInclusive<u32> = 3_000..=3_600_000;
/// The answer to `--nice`.
const KEEPS_PRIORITY: &str = "the service keeps its own priority, which Nice= and IOSchedulingClass= in its unit set: --nice is for the sending host alone";
/// For how long it may choose to stay away: a day at most, during which its job keeps what it has of the
/// limits.
const PATIENCE_MAX_MS: u32 = 86_400_000;

/// How a service is run.
pub struct Service {
    /// Bound and listening.
    pub listeners: Vec<TcpListener>,
    /// Who it is.
    pub identity: Identity,
    /// Everything goes below this folder.
    pub root: PathBuf,
    /// Who may send.
    pub book: Arc<Book>,
    /// How much at once.
    pub limits: Limits,
    /// A connection that acknowledges nothing for so long is dead.
    pub dead_after: Duration,
    /// Hears what happens.
    pub log: Log,
    /// Sums for a monitor.
    pub totals: Arc<Totals>,
}

/// Hears what happens.
pub type Log = Arc<dyn Fn(&Event) + Send + Sync>;

/// What happens in a service.
#[derive(Debug)]
pub enum Event {
    /// A session was given.
    Asked {
        /// Which.
        session: SessionId,
        /// To whom, as the allow file calls it.
        peer: String,
        /// From where.
        from: SocketAddr,
    },
    /// Its job was accepted.
    Begun {
        /// Which.
        session: SessionId,
        /// Images.
        images: usize,
        /// Their size together.
        bytes: u64,
        /// Destination, as asked for.
        path: String,
        /// Nothing will be written.
        dry_run: bool,
    },
    /// An image has its final name.
    Committed {
        /// Which session.
        session: SessionId,
        /// Where it lies.
        path: PathBuf,
    },
    /// The job is over.
    Ended {
        /// Which session.
        session: SessionId,
        /// Whose.
        peer: String,
        /// Why it failed; `None`: it did not.
        failure: Option<Failure>,
        /// Bytes of data that arrived.
        received_bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// A known key did not get what it asked for.
    Refused {
        /// Whose.
        peer: String,
        /// From where.
        from: SocketAddr,
        /// Why.
        failure: Failure,
    },
    /// A connection was not let in.
    TurnedAway {
        /// From where.
        from: SocketAddr,
        /// Why.
        reason: String,
    },
}

/// Sums since the service began.
#[derive(Debug, Default)]
pub struct Totals {
    /// Jobs that ended well.
    pub jobs_done: AtomicU64,
    /// Jobs that failed.
    pub jobs_failed: AtomicU64,
    /// Requests of known keys that were refused.
    pub refused: AtomicU64,
    /// Connections that were not let in.
    pub turned_away: AtomicU64,
    /// Images that have their final names.
    pub images: AtomicU64,
    /// Bytes of data received by jobs that are over.
    received: AtomicU64,
    running: Mutex<Vec<Arc<Receiving>>>,
}

impl Totals {
    /// Bytes of data received, by all jobs so far.
    pub fn received_bytes(&self) -> u64 {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let now: u64 = running.iter().map(|job| job.received_bytes()).sum();
        self.received.load(Ordering::Relaxed) + now
    }

    /// Jobs under way.
    pub fn running(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What every part of a service needs.
struct House {
    sessions: Arc<Sessions>,
    book: Arc<Book>,
    quota: Arc<Quota>,
    root: PathBuf,
    log: Log,
    totals: Arc<Totals>,
}

/// Serves until `stop` is ready, then ends all jobs with its failure.
///
/// # Errors
/// What keeps it from beginning.
pub async fn serve(service: Service, stop: impl Future<Output = Failure>) -> Result<(), Failure> {
    let broke = |e: &dyn std::fmt::Display| Failure::new(1, format!("cannot start the service: {e}"));
    let (callers, mut calls) = mpsc::channel(CALLERS);
    let sessions = Arc::new(Sessions::on_call(callers));
    let trust: Trust = {
        let (book, sessions) = (service.book.clone(), sessions.clone());
        // A job goes on when its key is struck off: the next one is refused.
        Arc::new(move |key| book.of(key).is_some() || sessions.has(key))
    };
    let keeper = Doorkeeper {
        config: tls::server(&service.identity, trust).map_err(|e| broke(&e))?,
        tuning: Tuning { unsent: 0, dead_after: service.dead_after },
    };
    let house = Arc::new(House {
        sessions: sessions.clone(),
        book: service.book,
        quota: Quota::new(service.limits),
        root: service.root,
        log: service.log,
        totals: service.totals,
    });
    let mut doors = JoinSet::new();
    for listener in service.listeners {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|e| broke(&e))?;
        let house = house.clone();
        let turned_away = move |from, e: &Error| house.turned_away(from, e);
        doors.spawn(door::keep(listener, keeper.clone(), sessions.clone(), turned_away));
    }
    let (ending, ended) = watch::channel(None);
    let mut jobs = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            Some((key, lane)) = calls.recv() => {
                let fingerprint = service.identity.fingerprint();
                jobs.spawn(house.clone().answer(fingerprint, key, lane, ended.clone()));
            }
            Some(_) = jobs.join_next() => {}
            failure = &mut stop => {
                let _ = ending.send(Some(failure));
                break;
            }
        }
    }
    doors.abort_all();
    // A sender that does not listen does not keep the service.
    let _ = timeout(GOODBYE, async { while jobs.join_next().await.is_some() {} }).await;
    jobs.shutdown().await;
    Ok(())
}

impl House {
    fn tell(&self, event: &Event) {
        (self.log)(event);
    }

    fn turned_away(&self, from: SocketAddr, e: &Error) {
        self.turn_away(
            from,
            match e {
                Error::WrongKey { .. } => "its key is not in the allow file".to_owned(),
                Error::Untrusted { .. } => {
                    "it does not trust this service's key ('vmferry trust' there, if it is right)".to_owned()
                }
                Error::NotAdmitted { .. } => "it does not belong to a session".to_owned(),
                Error::NoAnswer { seconds, .. } => format!("its handshake took more than {seconds} s"),
                Error::NotTls { detail, .. } => {
                    format!("it does not speak TLS 1.3 as vmferry does ({detail})")
                }
                Error::Hello { source, .. } => source.to_string(),
                Error::Crowded { .. } => "too many are waiting to be let in".to_owned(),
                other => other.to_string(),
            },
        );
    }

    fn turn_away(&self, from: SocketAddr, reason: String) {
        self.totals.turned_away.fetch_add(1, Ordering::Relaxed);
        self.tell(&Event::TurnedAway { from, reason });
    }

    /// Hears what a caller wants, and if it gets it, runs its job.
    async fn answer(
        self: Arc<Self>,
        ours: Fingerprint,
        key: Fingerprint,
        mut lane: Lane,
        ended: watch::Receiver<Option<Failure>>,
    ) {
        let from = lane.peer();
        // Struck off, if there is none: it was let in for the job that it has still.
        let Some(rule) = self.book.of(&key) else {
            return self.turned_away(from, &Error::WrongKey { peer: from });
        };
        let peer = rule.holder();
        let Some(calling) = self.quota.call(key) else {
            return self.turn_away(from, format!("{peer} asks too often at once"));
        };
        let asked = tokio::select! {
            asked = timeout(REQUEST, message::receive::<Bootstrap>(&mut lane)) => asked,
            _ = until(ended.clone()) => return,
        };
        drop(calling);
        let request = match asked {
            Ok(Ok(request)) => request,
            Ok(Err(e)) => return self.turn_away(from, format!("{peer} made no request: {e}")),
            Err(_) => {
                let seconds = REQUEST.as_secs();
                return self.turn_away(from, format!("{peer} made no request within {seconds} s"));
            }
        };
        let (session, setting) = match self.admit(key, rule, &request) {
            Ok(admitted) => admitted,
            Err(failure) => {
                self.totals.refused.fetch_add(1, Ordering::Relaxed);
                let _ =
                    timeout(REQUEST, message::send(&mut lane, &BootstrapReply::Fail(failure.clone()))).await;
                return self.tell(&Event::Refused { peer, from, failure });
            }
        };
        let pass = Pass { transport: request.transport, secret: request.secret, peer: key };
        let joined = self.sessions.open(session, pass);
        self.tell(&Event::Asked { session, peer: peer.clone(), from });
        let reply = BootstrapReply::Ready {
            fingerprint: ours.0,
            session,
            port: lane.local().port(),
            addresses: vec![],
        };
        let answered = timeout(REQUEST, message::send(&mut lane, &reply)).await;
        drop(lane);
        let begun = Instant::now();
        let log = JobLog { house: self.clone(), session, job: Mutex::default() };
        let result = match answered {
            Ok(Ok(())) => job::session(setting, &self.sessions, joined, &log, until(ended)).await,
            _ => Err(Failure::new(1, "the sender went away before it had its answer")),
        };
        self.sessions.close(&session);
        let received_bytes = log.over();
        let counter = if result.is_ok() { &self.totals.jobs_done } else { &self.totals.jobs_failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let failure = result.err();
        self.tell(&Event::Ended { session, peer, failure, received_bytes, took: begun.elapsed() });
    }

    fn admit(
        &self,
        key: Fingerprint,
        rule: Arc<Rule>,
        request: &Bootstrap,
    ) -> Result<(SessionId, Setting), Failure> {
        let refused = |reason: String| Failure::new(3, reason);
        if request.fingerprint != key.0 {
            return Err(refused("the request names another key than the connection's".into()));
        }
        if !DEAD_AFTER_MS.contains(&request.dead_after_ms) {
            return Err(refused(format!("a peer timeout of {} ms is not possible", request.dead_after_ms)));
        }
        if request.patience_ms > PATIENCE_MAX_MS {
            return Err(refused(format!("a patience of {} ms is not possible", request.patience_ms)));
        }
        let engine: EngineChoice = request.engine.parse().map_err(|e| refused(format!("{e}")))?;
        let lease: Lease = self.quota.job(key).map_err(refused)?;
        let ground = Ground::open(&self.root, rule)?;
        let session = SessionId(random().map_err(|e| Failure::new(1, e.to_string()))?);
        let setting = Setting {
            session,
            engine,
            direct: request.direct,
            memory: (request.memory > 0).then_some(request.memory),
            dead_after: Duration::from_millis(u64::from(request.dead_after_ms)),
            // One process for all jobs: none of them lowers it for the others.
            notices: if request.nice { vec![KEEPS_PRIORITY.into()] } else { vec![] },
            patience: Duration::from_millis(u64::from(request.patience_ms)),
            allowance: Some(Allowance { ground, lease }),
            asked: None,
        };
        Ok((session, setting))
    }
}

/// Ready when the service ends.
async fn until(mut ended: watch::Receiver<Option<Failure>>) -> Failure {
    loop {
        if let Some(failure) = &*ended.borrow_and_update() {
            return failure.clone();
        }
        if ended.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Passes on what happens in one job.
struct JobLog {
    house: Arc<House>,
    session: SessionId,
    job: Mutex<Option<Arc<Receiving>>>,
}

impl JobLog {
    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Receiving>>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that arrived.
    fn over(&self) -> u64 {
        let Some(job) = self.slot().take() else { return 0 };
        let totals = &self.house.totals;
        let mut running = totals.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|other| !Arc::ptr_eq(other, &job));
        let bytes = job.received_bytes();
        totals.received.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }
}

impl Watch for JobLog {
    fn begun(&self, open: &Open, job: &Arc<Receiving>) {
        *self.slot() = Some(job.clone());
        self.house.totals.running.lock().unwrap_or_else(PoisonError::into_inner).push(job.clone());
        self.house.tell(&Event::Begun {
            session: self.session,
            images: open.images.len(),
            bytes: open.images.iter().map(|i| i.size).fold(0, u64::saturating_add),
            path: open.path.clone(),
            dry_run: open.dry_run,
        });
    }

    fn committed(&self, path: &Path) {
        self.house.totals.images.fetch_add(1, Ordering::Relaxed);
        self.house.tell(&Event::Committed { session: self.session, path: path.to_owned() });
    }
}
