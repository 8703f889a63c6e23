use std::io;
use std::net::SocketAddr;

use proto::control::ControlError;
use proto::version::HelloError;
use thiserror::Error as ThisError;

/// Why a connection could not be made or used.
#[derive(Debug, ThisError)]
pub enum Error {
    /// Nothing accepts connections there.
    #[error("connection refused by {peer} (tcp)")]
    Refused {
        /// Where.
        peer: SocketAddr,
    },
    /// Neither yes nor no came back.
    #[error("no answer from {peer} (tcp) within {seconds} s")]
    NoAnswer {
        /// Where.
        peer: SocketAddr,
        /// How long was waited, seconds.
        seconds: u64,
        /// The connection was made; then nothing more came.
        connected: bool,
    },
    /// The socket failed otherwise.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// Where.
        peer: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Something answered that is not a TLS 1.3 peer.
    #[error("{peer} answers, but does not speak TLS 1.3: something else uses that port ({detail})")]
    NotTls {
        /// Where.
        peer: SocketAddr,
        /// What the TLS library saw.
        detail: String,
    },
    /// The pinned key is not the one presented.
    #[error(
        "{peer} presented another key than the one announced for this job: it is another machine or somebody is in between; nothing was sent"
    )]
    WrongKey {
        /// Where.
        peer: SocketAddr,
    },
    /// The other side does not accept our key or our proof.
    #[error("{peer} does not accept this side's key: the connection belongs to another job")]
    NotAdmitted {
        /// Where.
        peer: SocketAddr,
    },
    /// Too many connections wait there; this one was given up for the others.
    #[error("{peer} was one of too many that wait")]
    Crowded {
        /// Where from.
        peer: SocketAddr,
    },
    /// The other side does not believe our key.
    #[error("{peer} does not trust this side's key")]
    Untrusted {
        /// Where.
        peer: SocketAddr,
    },
    /// A frame whose tag does not fit: on plain TCP.
    #[error(
        "data from {peer} was changed, repeated or made up on the way; nothing of it was used: use --transport tls where others have access to the network"
    )]
    Forged {
        /// Where it came from.
        peer: SocketAddr,
    },
    /// A record whose check of TLS does not fit.
    #[error(
        "what arrived was changed or damaged on the way ({0}); nothing of it was used: suspect memory or network hardware of the two hosts, or somebody in between"
    )]
    Damaged(rustls::Error),
    /// Versions or roles do not fit.
    #[error("{peer}: {source}")]
    Hello {
        /// Where.
        peer: SocketAddr,
        /// What does not fit.
        source: HelloError,
    },
    /// A control message that is not one.
    #[error("bad message from the peer: {0}")]
    Message(#[from] ControlError),
    /// The connection ended in an orderly way where more was due.
    #[error("the peer closed the connection")]
    Closed,
    /// A peer that should say something now and then does not.
    #[error("nothing heard for {seconds} s")]
    Silent {
        /// How long was waited, seconds.
        seconds: u64,
    },
    /// The connection broke.
    #[error("connection lost: {0}")]
    Io(io::Error),
    /// Keys could not be made or used on this side.
    #[error("cannot set up TLS: {0}")]
    Crypto(String),
    /// No port could be opened for listening.
    #[error("cannot listen on {what}: {source}")]
    Listen {
        /// Port or range.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// The peer's program has not heard of the lane that was to be joined.
    pub fn is_before_join(&self) -> bool {
        matches!(
            self,
            Error::Refused { .. } | Error::Connect { .. } | Error::NoAnswer { connected: false, .. }
        )
    }

    /// What came in is not what was sent: a new connection would be no better.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Forged { .. } | Error::Damaged(_))
    }

    /// The peer ended nothing: it is merely not heard any more. It hangs, or the way to it is cut.
    pub fn is_silence(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Error::Silent { .. } | Error::NoAnswer { .. } => true,
            Error::Io(e) => matches!(e.kind(), TimedOut | HostUnreachable | NetworkUnreachable),
            _ => false,
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Error {
        use rustls::Error::{DecryptError, InvalidMessage, PeerSentOversizedRecord};
        match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(damage @ (DecryptError | InvalidMessage(_) | PeerSentOversizedRecord)) => {
                Error::Damaged(damage.clone())
            }
            _ if source.kind() == io::ErrorKind::UnexpectedEof => Error::Closed,
            _ => Error::Io(source),
        }
    }
}
