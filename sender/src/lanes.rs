//! Keeps the data lanes up: a lane that breaks is replaced by a new one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lanes::dial::Dialer;
use lanes::{Error, Lane};
use proto::control::{Failure, LaneId};
use proto::geometry::ChunkSize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cause::unreachable_peer;
use crate::dispatch;
use crate::job::{REASON_GRACE, Shared};
use crate::read::Ready;
use crate::reconnect::Backoff;

/// A lane that broke is spoken of after this time, unless the receiver has answered before: it may be
/// about to say why it ended everything.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// A lane and its id.
pub(crate) type Joined = (LaneId, Lane);

/// One of the N places for data lanes, with one lane after the other.
#[derive(Clone)]
pub(crate) struct Place {
    /// From 1, for people.
    pub(crate) number: u32,
    pub(crate) dialer: Dialer,
    /// Addresses of the way that its lanes take.
    pub(crate) way: Vec<SocketAddr>,
    pub(crate) chunk: ChunkSize,
    pub(crate) dead_after: Duration,
    pub(crate) patience: Duration,
    /// How the receiver's host is called.
    pub(crate) host: String,
    pub(crate) queue: async_channel::Receiver<Ready>,
    pub(crate) shared: Arc<Shared>,
}

/// Joins the first lane of every place, side by side; either all of them stand, or the job does not
/// start. `asked_for`: as in [`unreachable_peer`].
///
/// # Errors
/// Why one of them cannot be reached. When control is lost at that time, it is none of the lanes: then
/// it is tried again.
pub(crate) async fn join_all(places: &[Place], asked_for: bool) -> Result<Vec<Joined>, Failure> {
    let mut missing: Vec<(Place, Option<LaneId>)> =
        places.iter().map(|place| (place.clone(), None)).collect();
    let mut joined = Vec::new();
    loop {
        let mut joins = JoinSet::new();
        for (place, failed) in std::mem::take(&mut missing) {
            let id = place.shared.session().open_lane();
            joins.spawn(async move {
                if let Some(failed) = failed {
                    place.shared.until_closed(failed).await;
                }
                (place.dialer.join_any(id, &place.way).await, id, place)
            });
        }
        let mut failed = None;
        while let Some(done) = joins.join_next().await {
            match done {
                Ok((Ok(lane), id, place)) => joined.push((place.number, (id, lane))),
                Ok((Err(e), id, place)) => {
                    place.shared.lose_lane(id);
                    failed = failed.or(Some(unreachable_peer(&e, &[], asked_for)));
                    missing.push((place, Some(id)));
                }
                Err(e) => return Err(Failure::new(1, format!("a lane broke down: {e}"))),
            }
        }
        let (Some(failure), Some((place, _))) = (failed, missing.first()) else {
            joined.sort_by_key(|(number, _)| *number);
            return Ok(joined.into_iter().map(|(_, lane)| lane).collect());
        };
        let mut control = place.shared.control.subscribe();
        if timeout(REASON_GRACE, control.wait_for(|up| !up)).await.is_err() {
            return Err(failure);
        }
        // The conversation gives up when patience is over, and the job with it.
        let _ = control.wait_for(|up| *up).await;
    }
}

impl Place {
    /// Carries units over `lane`, and over others after it, until there are no more.
    ///
    /// # Errors
    /// When the job has had no lane for as long as its patience is.
    pub(crate) async fn run(self, lane: Joined) -> Result<(), Failure> {
        let mut current = Some(lane);
        while let Some((id, lane)) = current {
            self.shared.lanes_up.send_modify(|up| *up += 1);
            let ended = dispatch::run(id, lane, &self).await;
            self.shared.lanes_up.send_modify(|up| *up -= 1);
            let Err(e) = ended else { return Ok(()) };
            self.shared.lose_lane(id);
            if timeout(TELL_AFTER, self.shared.until_closed(id)).await.is_ok() && self.queue.is_closed() {
                return Ok(());
            }
            self.shared.tell_lost(self.number, &e);
            current = tokio::select! {
                joined = self.rejoin(id) => joined,
                () = self.shared.without_lanes(self.patience) => return Err(self.no_lane(&e)),
            };
        }
        Ok(())
    }

    /// A new lane for one that broke; none when there is nothing more to carry.
    async fn rejoin(&self, mut broken: LaneId) -> Option<Joined> {
        let mut backoff = Backoff::new();
        loop {
            // The receiver has no more than N at a time, so the old one has to be closed there first.
            self.shared.until_closed(broken).await;
            backoff.pause().await;
            let id = self.shared.session().open_lane();
            let joined = loop {
                if self.queue.is_closed() {
                    return None;
                }
                match self.dialer.join_any(id, &self.way).await {
                    // The receiver has not heard of this id.
                    Err(e) if self.way.len() == 1 && e.is_before_join() => backoff.pause().await,
                    joined => break joined,
                }
            };
            match joined {
                Ok(lane) => {
                    self.shared.tell_restored(self.number);
                    return Some((id, lane));
                }
                Err(_) => {
                    self.shared.lose_lane(id);
                    broken = id;
                }
            }
        }
    }

    fn no_lane(&self, e: &Error) -> Failure {
        let (host, seconds) = (&self.host, self.patience.as_secs());
        let reason = format!(
            "all data connections to {host} were lost ({e}) and none could be made again within {seconds} s, though the control connection stands: check the way there, then run the same command again to go on"
        );
        Failure::new(6, reason)
    }
}
