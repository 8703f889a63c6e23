//! Why a job ends early: of all that breaks at once, the one reason to show.

use std::net::SocketAddr;
use std::time::Duration;

use lanes::Error;
use proto::control::Failure;
use proto::digest::Digests;
use tokio::task::JoinError;

use crate::control::Ended;
use crate::job::Part;
use crate::reconnect::GaveUp;

/// Why the job ends early.
pub(crate) enum Cause {
    /// Found here.
    Ours(Failure),
    /// Said by the receiver.
    Theirs(Failure),
    /// The control connection broke, and could not be made again.
    Peer(Error, GaveUp),
}

/// Takes in the end of one part; digests are passed on.
pub(crate) fn settle(part: Result<Part, JoinError>) -> Result<Option<(u32, Digests)>, Cause> {
    match part {
        Ok(Part::Digests(done)) => done.map(Some).map_err(Cause::Ours),
        Ok(Part::Reader(done) | Part::Lane(done)) => done.map(|()| None).map_err(Cause::Ours),
        Ok(Part::Control(Ended::Said)) => Ok(None),
        Ok(Part::Control(Ended::ByReceiver(failure))) => Err(Cause::Theirs(failure)),
        Ok(Part::Control(Ended::Lost(e, gave_up))) => Err(Cause::Peer(e, gave_up)),
        Ok(Part::Control(Ended::Violation(what))) => {
            Err(Cause::Ours(Failure::new(1, format!("the receiver broke the protocol: {what}"))))
        }
        Ok(Part::Control(Ended::Damaged(e))) => {
            Err(Cause::Ours(Failure::new(4, format!("control connection: {e}"))))
        }
        Ok(Part::Control(Ended::Done)) => {
            Err(Cause::Ours(Failure::new(1, "the receiver broke the protocol: it ended the job by itself")))
        }
        Err(e) => Err(Cause::Ours(Failure::new(1, format!("a task broke down: {e}")))),
    }
}

/// The end of a part before there was anything to do.
pub(crate) fn too_early(part: Result<Part, JoinError>) -> Cause {
    settle(part).err().unwrap_or_else(|| Cause::Ours(Failure::new(1, "the job ended before it began")))
}

/// The reason to show. `asked`: images that the receiver may have finished.
pub(crate) fn failure(cause: Cause, host: &str, patience: Duration, asked: &[String]) -> Failure {
    match cause {
        Cause::Ours(failure) => failure,
        Cause::Theirs(failure) => failure_of(host, failure),
        Cause::Peer(e, GaveUp::Gone) => peer_lost(host, &e, asked),
        Cause::Peer(e, GaveUp::OutOfPatience) => {
            let what = if e.is_silence() {
                format!("{host} fell silent")
            } else {
                format!("the connection to {host} was lost")
            };
            let reason = format!(
                "{what} ({e}) and it was not reached again within {} s: its receiver is stopped or hangs, or the way to it is cut: check both, then run the same command again to go on",
                patience.as_secs()
            );
            Failure::new(6, with_asked(reason, asked))
        }
    }
}

/// The receiver is gone, and did not say why; or it is only not heard any more.
pub(crate) fn peer_lost(host: &str, e: &Error, asked: &[String]) -> Failure {
    let reason = if e.is_silence() {
        format!(
            "{host} fell silent ({e}): its receiver is stopped or hangs, or the way to it is cut: check both, then send again"
        )
    } else {
        format!(
            "the receiver went away without a reason ({e}): check {host} and the way to it, then send again"
        )
    };
    Failure::new(1, with_asked(reason, asked))
}

fn with_asked(reason: String, asked: &[String]) -> String {
    if asked.is_empty() {
        return reason;
    }
    format!("{reason}; {} may be in place there already", asked.join(", "))
}

/// What the receiver says, with its host's name.
pub(crate) fn failure_of(host: &str, failure: Failure) -> Failure {
    Failure { reason: format!("{host}: {}", failure.reason), ..failure }
}

/// Why the receiver cannot be reached, and what to do. `tried`: all addresses, of which the error is
/// about one; `asked_for`: it is the receiver's user who does it.
pub(crate) fn unreachable_peer(error: &lanes::Error, tried: &[SocketAddr], asked_for: bool) -> Failure {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    let said = error.to_string();
    let others = tried.iter().filter(|a| !a.ip().is_loopback() && !said.contains(&a.to_string()));
    let others: Vec<String> = others.map(|a| a.ip().to_string()).take(8).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; nor is it reached at {}", others.join(", "))
    };
    let whole = format!("{said}{others}");
    let reason = match error {
        lanes::Error::Connect { peer, .. }
        | lanes::Error::Refused { peer }
        | lanes::Error::NoAnswer { peer, .. }
        | lanes::Error::NotTls { peer, .. }
            if asked_for =>
        {
            format!(
                "cannot reach this host on TCP port {port}: {whole}; if a firewall blocks it, open it towards here (nft add rule inet filter input tcp dport {port} accept); choose a port with --port, an address of this host with --via",
                port = peer.port()
            )
        }
        lanes::Error::Connect { source, .. } if source.kind() == NetworkUnreachable => {
            format!("{whole}: name an address that this host has a route to with --via")
        }
        lanes::Error::Connect { source, .. } if source.kind() != HostUnreachable => whole,
        // A firewall that rejects is heard as "no route to host" as well.
        lanes::Error::Refused { peer }
        | lanes::Error::NoAnswer { peer, .. }
        | lanes::Error::Connect { peer, .. } => format!(
            "{whole}: a firewall between this host and {} may block the data port: open TCP {} towards it there (nft add rule inet filter input tcp dport {} accept), choose a port with --port, or another address with --via",
            peer.ip(),
            peer.port(),
            peer.port()
        ),
        lanes::Error::NotTls { .. } => format!("{whole}: choose another port with --port"),
        _ => whole,
    };
    Failure::new(3, reason)
}
