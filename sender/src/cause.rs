//! Why a job ends early: of all that breaks at once, the one reason to show.

use lanes::{Error, Lane};
use proto::control::{Failure, LaneId};
use proto::digest::Digests;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::control::Ended;
use crate::job::{Part, REASON_GRACE, failure_of};

/// Why the job ends early.
pub(crate) enum Cause {
    /// Found here.
    Ours(Failure),
    /// Said by the receiver.
    Theirs(Failure),
    /// The control connection broke, so nothing more will be heard.
    Peer(Error),
    /// Another connection broke: the receiver may have a better reason.
    Connection(Error, Option<LaneId>),
    /// Not all lanes could be joined: as well. With those that were.
    Unjoined(Failure, Vec<(LaneId, Lane)>),
}

/// Takes in the end of one part; digests are passed on.
pub(crate) fn settle(part: Result<Part, JoinError>) -> Result<Option<(u32, Digests)>, Cause> {
    match part {
        Ok(Part::Digests(done)) => done.map(Some).map_err(Cause::Ours),
        Ok(Part::Reader(done)) => done.map(|()| None).map_err(Cause::Ours),
        Ok(Part::Lane(_, Ok(())) | Part::Speaker(Ok(()))) => Ok(None),
        Ok(Part::Lane(id, Err(e))) => Err(Cause::Connection(e, Some(id))),
        Ok(Part::Speaker(Err(e))) => Err(Cause::Connection(e, None)),
        Ok(Part::Listener(Ended::ByReceiver(failure))) => Err(Cause::Theirs(failure)),
        Ok(Part::Listener(Ended::Lost(e))) => Err(Cause::Peer(e)),
        Ok(Part::Listener(Ended::Violation(what))) => {
            Err(Cause::Ours(Failure::new(1, format!("the receiver broke the protocol: {what}"))))
        }
        Ok(Part::Listener(Ended::Done)) => {
            Err(Cause::Ours(Failure::new(1, "the receiver broke the protocol: it ended the job by itself")))
        }
        Err(e) => Err(Cause::Ours(Failure::new(1, format!("a task broke down: {e}")))),
    }
}

/// The end of a part before there was anything to do.
pub(crate) fn too_early(part: Result<Part, JoinError>) -> Cause {
    settle(part).err().unwrap_or_else(|| Cause::Ours(Failure::new(1, "the job ended before it began")))
}

/// The reason to show: what the receiver says wins over the resets that follow from it. `asked`:
/// images that it may have finished.
pub(crate) async fn first(cause: Cause, host: &str, asked: &[String], parts: &mut JoinSet<Part>) -> Failure {
    let (symptom, _kept) = match cause {
        Cause::Ours(failure) => return failure,
        Cause::Theirs(failure) => return failure_of(host, failure),
        Cause::Peer(e) => return peer_lost(host, &e, asked),
        Cause::Unjoined(failure, lanes) => (failure, lanes),
        Cause::Connection(e, None) => (peer_lost(host, &e, asked), Vec::new()),
        Cause::Connection(e, Some(id)) => {
            let reason = format!(
                "data connection {} to {host} was lost ({e}): check the way there, then run the same command again",
                id.0
            );
            (Failure::new(1, reason), Vec::new())
        }
    };
    let said = async {
        while let Some(part) = parts.join_next().await {
            match part {
                Ok(Part::Listener(Ended::ByReceiver(failure))) => return Some(failure_of(host, failure)),
                Ok(Part::Listener(Ended::Lost(e))) => return Some(peer_lost(host, &e, asked)),
                _ => {}
            }
        }
        None
    };
    timeout(REASON_GRACE, said).await.ok().flatten().unwrap_or(symptom)
}

/// The receiver is gone, and did not say why; or it is only not heard any more.
pub(crate) fn peer_lost(host: &str, e: &Error, asked: &[String]) -> Failure {
    let mut reason = if e.is_silence() {
        format!(
            "{host} fell silent ({e}): its receiver is stopped or hangs, or the way to it is cut: check both, then send again"
        )
    } else {
        format!(
            "the receiver went away without a reason ({e}): check {host} and the way to it, then send again"
        )
    };
    if !asked.is_empty() {
        reason += &format!("; {} may be in place there already", asked.join(", "));
    }
    Failure::new(1, reason)
}
