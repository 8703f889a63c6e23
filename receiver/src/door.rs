//! The door: every connection to the receiver's port comes in here, and most strangers no further.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanes::identity::Fingerprint;
use lanes::listen::{Doorkeeper, Guests, Pass, Visitor};
use lanes::{Error, Lane};
use proto::control::{CONTROL, LANES_MAX, LaneId, SessionId};
use proto::join::Request;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::job::Receiving;

/// Connections that have not proven who they are, at once. One more, and one of them is shed.
const HANDSHAKES: usize = 512;
/// A sender has said its first word by then.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// A connection that says nothing at all is closed after this time.
const SILENCE: Duration = Duration::from_secs(10);

/// Connections that joined a session.
pub(crate) type Joined = mpsc::Receiver<(LaneId, Lane)>;
/// Holders of an accepted key that ask for a session.
pub(crate) type Callers = mpsc::Sender<(Fingerprint, Lane)>;

/// The sessions that connections may join.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    seats: Mutex<HashMap<SessionId, Seat>>,
    callers: Option<Callers>,
}

#[derive(Debug)]
struct Seat {
    pass: Pass,
    /// Once there is a job, its sender may connect again.
    control_taken: bool,
    /// What data lanes join; before there is a job, none may.
    job: Option<Arc<Receiving>>,
    arrivals: mpsc::Sender<(LaneId, Lane)>,
}

impl Sessions {
    /// None yet; callers may ask for some.
    pub(crate) fn on_call(callers: Callers) -> Sessions {
        Sessions { callers: Some(callers), ..Sessions::default() }
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<SessionId, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session.
    pub(crate) fn open(&self, session: SessionId, pass: Pass) -> Joined {
        let (arrivals, joined) = mpsc::channel(LANES_MAX as usize + 1);
        self.seats().insert(session, Seat { pass, control_taken: false, job: None, arrivals });
        joined
    }

    /// From now on data lanes may join.
    pub(crate) fn begin(&self, session: &SessionId, job: Arc<Receiving>) {
        if let Some(seat) = self.seats().get_mut(session) {
            seat.job = Some(job);
        }
    }

    /// Nobody joins it any more.
    pub(crate) fn close(&self, session: &SessionId) {
        self.seats().remove(session);
    }

    /// Whether a session of this key goes on.
    pub(crate) fn has(&self, peer: &Fingerprint) -> bool {
        self.seats().values().any(|seat| seat.pass.peer == *peer)
    }

    fn arrivals(&self, session: &SessionId) -> Option<mpsc::Sender<(LaneId, Lane)>> {
        self.seats().get(session).map(|seat| seat.arrivals.clone())
    }
}

impl Guests for Sessions {
    fn pass(&self, session: &SessionId) -> Option<Pass> {
        self.seats().get(session).map(|seat| seat.pass.clone())
    }

    fn welcome(&self, request: &Request) -> bool {
        let mut seats = self.seats();
        let Some(seat) = seats.get_mut(&request.session) else { return false };
        match (request.lane, &seat.job) {
            (CONTROL, None) => !std::mem::replace(&mut seat.control_taken, true),
            (CONTROL, Some(job)) => request.epoch == job.epoch,
            (id, Some(job)) => job.welcomes(id, request.epoch),
            (_, None) => false,
        }
    }

    fn hears_callers(&self) -> bool {
        self.callers.is_some()
    }
}

/// Accepts connections for ever. `turned_away` hears of those that were not let in.
pub(crate) async fn keep(
    listener: tokio::net::TcpListener,
    keeper: Doorkeeper,
    sessions: Arc<Sessions>,
    turned_away: impl Fn(SocketAddr, &Error) + Clone + Send + 'static,
) {
    let hall = Arc::new(Hall::default());
    let crowded = |shed: Option<SocketAddr>| {
        if let Some(peer) = shed {
            turned_away(peer, &Error::Crowded { peer });
        }
    };
    loop {
        let Ok((socket, from)) = listener.accept().await else {
            // Out of descriptors, most likely: those in use will be returned.
            crowded(hall.shed());
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (keeper, sessions, turned_away) = (keeper.clone(), sessions.clone(), turned_away.clone());
        let (place, waiting) = (hall.enter(from), hall.clone());
        let spoke = place.spoke.clone();
        let number = place.number;
        let task = tokio::spawn(async move {
            let admitted = admit(socket, from, &keeper, &sessions, &spoke).await;
            waiting.leave(number);
            match admitted {
                Ok(Visitor::Lane(request, lane)) => {
                    if let Some(arrivals) = sessions.arrivals(&request.session) {
                        let _ = arrivals.send((request.lane, lane)).await;
                    }
                }
                Ok(Visitor::Caller(key, lane)) => {
                    if let Some(callers) = &sessions.callers {
                        let _ = callers.send((key, lane)).await;
                    }
                }
                // A probe that opens a port and closes it again is no event.
                Err(Error::Closed | Error::Io(_)) if !spoke.load(Ordering::Relaxed) => {}
                // In silence towards them: the job is not theirs to disturb.
                Err(e) => turned_away(from, &e),
            }
        });
        crowded(hall.watch(place, task.abort_handle()));
    }
}

async fn admit(
    socket: TcpStream,
    from: SocketAddr,
    keeper: &Doorkeeper,
    sessions: &Sessions,
    spoke: &AtomicBool,
) -> Result<Visitor, Error> {
    let silent = Error::NoAnswer { peer: from, seconds: SILENCE.as_secs(), connected: true };
    match timeout(SILENCE, socket.peek(&mut [0])).await {
        Err(_) => return Err(silent),
        Ok(Ok(0)) => return Err(Error::Closed),
        Ok(said) => said?,
    };
    spoke.store(true, Ordering::Relaxed);
    keeper.admit(socket, sessions).await
}

/// Where connections wait that have not proven who they are.
#[derive(Debug, Default)]
struct Hall {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// Number of the last one that was watched.
    watched: u64,
    /// Oldest first.
    places: Vec<(Place, AbortHandle)>,
    /// Left before they were watched.
    gone: Vec<u64>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    from: SocketAddr,
    since: Instant,
    spoke: Arc<AtomicBool>,
}

impl Hall {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, from: SocketAddr) -> Place {
        let mut waiting = self.waiting();
        waiting.next += 1;
        Place { number: waiting.next, from, since: Instant::now(), spoke: Arc::default() }
    }

    /// Says who was shed for it.
    fn watch(&self, place: Place, task: AbortHandle) -> Option<SocketAddr> {
        let mut waiting = self.waiting();
        waiting.watched = place.number;
        if let Some(at) = waiting.gone.iter().position(|n| *n == place.number) {
            waiting.gone.swap_remove(at);
            return None;
        }
        waiting.places.push((place, task));
        if waiting.places.len() > HANDSHAKES { waiting.shed() } else { None }
    }

    fn leave(&self, number: u64) {
        let mut waiting = self.waiting();
        match waiting.places.iter().position(|(p, _)| p.number == number) {
            Some(at) => drop(waiting.places.remove(at)),
            None if number > waiting.watched => waiting.gone.push(number),
            // Shed in the moment when it was through.
            None => {}
        }
    }

    fn shed(&self) -> Option<SocketAddr> {
        self.waiting().shed()
    }
}

impl Waiting {
    /// Closes the one that is least likely a sender's: the oldest that never said a word, else the
    /// oldest of the network with the most. A sender is through in milliseconds; but it has not
    /// spoken yet when it comes in.
    fn shed(&mut self) -> Option<SocketAddr> {
        let silent = |(p, _): &(Place, _)| !p.spoke.load(Ordering::Relaxed) && p.since.elapsed() > FIRST_WORD;
        let victim = self.places.iter().position(silent).or_else(|| {
            let mut count: HashMap<IpAddr, usize> = HashMap::new();
            self.places.iter().for_each(|(p, _)| *count.entry(network(p.from)).or_default() += 1);
            let (busiest, _) = count.into_iter().max_by_key(|(_, n)| *n)?;
            self.places.iter().position(|(p, _)| network(p.from) == busiest)
        });
        let (place, task) = self.places.remove(victim?);
        task.abort();
        Some(place.from)
    }
}

/// Whoever has one address of an IPv6 network has 2^64 of them.
fn network(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(hall: &Hall, from: [u8; 4], spoke: bool) -> tokio::task::JoinHandle<()> {
        let mut place = hall.enter((from, 1).into());
        place.since -= 2 * FIRST_WORD;
        place.spoke.store(spoke, Ordering::Relaxed);
        let task = tokio::spawn(std::future::pending());
        hall.watch(place, task.abort_handle());
        task
    }

    /// Nobody who is at it is shed while there are silent ones, and no address suffers for another.
    #[tokio::test]
    async fn the_silent_go_first_then_the_many() {
        let hall = Hall::default();
        let early = guest(&hall, [10, 0, 0, 1], true);
        let mut silent: Vec<_> = (1..HANDSHAKES).map(|_| guest(&hall, [10, 0, 0, 9], false)).collect();
        let more: Vec<_> = (0..HANDSHAKES).map(|_| guest(&hall, [10, 0, 0, 9], true)).collect();
        assert_eq!(hall.waiting().places.len(), HANDSHAKES);
        for task in &mut silent {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        tokio::task::yield_now().await;
        assert!(!early.is_finished(), "the only one of its address");
        assert_eq!(more.iter().filter(|t| t.is_finished()).count(), 1);
        let newcomer = hall.enter(([10, 0, 0, 9], 1).into());
        let task = tokio::spawn(std::future::pending::<()>());
        hall.watch(newcomer, task.abort_handle());
        tokio::task::yield_now().await;
        assert!(!task.is_finished(), "has not had the time for a word");
        task.abort();
        early.abort();
        more.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[test]
    fn a_network_is_one_neighbour() {
        let of = |ip: &str| network((ip.parse::<IpAddr>().unwrap(), 1).into());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[tokio::test]
    async fn who_left_early_takes_no_place() {
        let hall = Hall::default();
        let place = hall.enter(([10, 0, 0, 1], 1).into());
        hall.leave(place.number);
        hall.watch(place, tokio::spawn(async {}).abort_handle());
        // Shed, but through already.
        let late = guest(&hall, [10, 0, 0, 1], true);
        assert!(hall.shed().is_some());
        hall.leave(2);
        let waiting = hall.waiting();
        assert!(waiting.places.is_empty() && waiting.gone.is_empty());
        drop(late);
    }
}
