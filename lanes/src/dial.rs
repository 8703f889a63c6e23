//! The sender's end: reach the receiver, prove the session, on every lane.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::control::{Bootstrap, BootstrapReply, CONTROL, LaneId, SessionId, Transport};
use proto::join::{self, Request, Secret, Transcript};
use proto::version::{HELLO_LEN, Hello, Role};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::stream::{Connection, Lane, buffered};
use crate::tls::{EXPORTER_LABEL, WRITE_BUFFER, is_wrong_key};
use crate::tune::{SourcePorts, Tuning, apply, wait_for_a_busy_peer};
use crate::{Error, identity, message};

/// Between two addresses that are tried side by side (RFC 8305, section 5: 250 ms).
const STAGGER: Duration = Duration::from_millis(250);

/// Makes connections that belong to one session.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// TLS with the pinned key of the receiver.
    pub config: Arc<ClientConfig>,
    /// How data lanes are carried. Control is TLS always.
    pub transport: Transport,
    /// The session's secret.
    pub secret: Secret,
    /// The session.
    pub session: SessionId,
    /// The job's attempt.
    pub epoch: u32,
    /// Source ports of the lanes.
    pub ports: SourcePorts,
    /// Socket options.
    pub tuning: Tuning,
    /// For connecting, and again for the handshake.
    pub patience: Duration,
}

impl Dialer {
    /// Joins the control connection through whichever address answers first with the pinned key;
    /// earlier ones in the list have a head start.
    ///
    /// # Errors
    /// The reason of the first address when none works.
    pub async fn control(&self, candidates: &[SocketAddr]) -> Result<Lane, Error> {
        self.join_any(CONTROL, candidates).await
    }

    /// Joins one lane, as [`Dialer::control`] does: the receiver takes each lane once only.
    ///
    /// # Errors
    /// The reason of the first address when none works.
    pub async fn join_any(&self, lane: LaneId, candidates: &[SocketAddr]) -> Result<Lane, Error> {
        race(candidates, |peer| {
            let this = self.clone();
            async move { this.join(lane, peer).await }
        })
        .await
    }

    /// Asks a service for a session, at whichever address answers first with a trusted key. The
    /// dialer's own session is not known before.
    ///
    /// # Errors
    /// The reason of the first address when none works.
    pub async fn call(
        &self,
        candidates: &[SocketAddr],
        request: &Bootstrap,
    ) -> Result<(SocketAddr, BootstrapReply), Error> {
        let mut lane = race(candidates, |peer| {
            let this = self.clone();
            async move {
                let socket = this.reach(CONTROL, peer).await?;
                let calling = async {
                    let mut lane = this.secure(socket, peer).await?;
                    greet(&mut lane).await.map_err(|e| why_closed(e, peer))?;
                    Ok(lane)
                };
                timeout(this.patience, calling).await.map_err(|_| this.no_answer(peer, true))?
            }
        })
        .await?;
        let peer = lane.peer();
        let asking = async {
            message::send(&mut lane, request).await?;
            message::receive(&mut lane).await
        };
        let reply = timeout(self.patience, asking).await.map_err(|_| self.no_answer(peer, true))?;
        reply.map(|reply| (peer, reply)).map_err(|e| why_closed(e, peer))
    }

    /// Connects and joins one lane.
    ///
    /// # Errors
    /// Every [`Error`] of connecting names the peer.
    pub async fn join(&self, lane: LaneId, peer: SocketAddr) -> Result<Lane, Error> {
        let socket = self.reach(lane, peer).await?;
        timeout(self.patience, self.handshake(lane, socket, peer))
            .await
            .map_err(|_| self.no_answer(peer, true))?
    }

    fn no_answer(&self, peer: SocketAddr, connected: bool) -> Error {
        Error::NoAnswer { peer, seconds: self.patience.as_secs(), connected }
    }

    async fn reach(&self, lane: LaneId, peer: SocketAddr) -> Result<TcpStream, Error> {
        let socket = timeout(self.patience, self.connect(lane, peer))
            .await
            .map_err(|_| self.no_answer(peer, false))?;
        socket.map_err(|source| match source.kind() {
            io::ErrorKind::ConnectionRefused => Error::Refused { peer },
            io::ErrorKind::TimedOut => self.no_answer(peer, false),
            _ => Error::Connect { peer, source },
        })
    }

    async fn connect(&self, lane: LaneId, peer: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.ports.bind(lane.0, peer.ip())?.connect(peer).await?;
        apply(&socket, &self.tuning)?;
        if lane != CONTROL {
            wait_for_a_busy_peer(&socket)?;
        }
        Ok(socket)
    }

    async fn handshake(&self, id: LaneId, socket: TcpStream, peer: SocketAddr) -> Result<Lane, Error> {
        let mut lane = if id != CONTROL && self.transport == Transport::Tcp {
            let local = socket.local_addr()?;
            Lane::new(Connection::Tcp(socket), local, peer)
        } else {
            self.secure(socket, peer).await?
        };
        self.prove(id, &mut lane).await.map_err(|e| why_closed(e, peer))?;
        Ok(lane)
    }

    async fn secure(&self, socket: TcpStream, peer: SocketAddr) -> Result<Lane, Error> {
        let local = socket.local_addr()?;
        // SNI is off: the name is never sent and means nothing to a pinned key.
        let name = ServerName::IpAddress(peer.ip().into());
        let tls = TlsConnector::from(self.config.clone()).connect(name, buffered(socket));
        let mut tls = tls.await.map_err(|e| explain(&e, peer))?;
        tls.get_mut().1.set_buffer_limit(Some(WRITE_BUFFER));
        Ok(Lane::new(Connection::Tls(Box::new(tls.into())), local, peer))
    }

    async fn prove(&self, id: LaneId, lane: &mut Lane) -> Result<(), Error> {
        let peer = lane.peer();
        let request =
            Request { session: self.session, lane: id, epoch: self.epoch, nonce: identity::random()? };
        let mut opening = Hello::ours(Role::Lane).encode().to_vec();
        opening.extend_from_slice(&request.encode());
        lane.write_all(&opening).await?;
        lane.flush().await?;

        let mut hello = [0; HELLO_LEN];
        lane.read_exact(&mut hello).await?;
        Hello::accept(&hello, Role::Lane).map_err(|source| Error::Hello { peer, source })?;
        let (mut nonce, mut proof) = ([0; join::SECRET_LEN], [0; join::SECRET_LEN]);
        lane.read_exact(&mut nonce).await?;
        lane.read_exact(&mut proof).await?;
        let exporter = lane.exporter(EXPORTER_LABEL)?;
        let transcript =
            Transcript { secret: &self.secret, request: &request, nonce: &nonce, exporter: &exporter };
        if !join::proofs_equal(&proof, &transcript.receiver_proof()) {
            return Err(Error::WrongKey { peer });
        }
        lane.write_all(&transcript.sender_proof()).await?;
        lane.flush().await?;
        lane.protect(&transcript);
        match lane.read_u8().await? {
            0 => Ok(()),
            _ => Err(Error::NotAdmitted { peer }),
        }
    }
}

/// Tries one address after the other, without waiting for the first to fail.
async fn race<T, F>(candidates: &[SocketAddr], attempt: impl Fn(SocketAddr) -> F) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut tries = JoinSet::new();
    for (i, peer) in (0u32..).zip(candidates.iter().copied()) {
        let attempt = attempt(peer);
        tries.spawn(async move {
            sleep(STAGGER * i).await;
            (i, attempt.await)
        });
    }
    let mut first: Option<(u32, Error)> = None;
    while let Some(done) = tries.join_next().await {
        match done {
            Ok((_, Ok(won))) => return Ok(won),
            Ok((i, Err(e))) if first.as_ref().is_none_or(|(seen, _)| i < *seen) => first = Some((i, e)),
            Ok(_) | Err(_) => {}
        }
    }
    Err(first.map_or_else(|| Error::Crypto("no address to connect to".into()), |(_, e)| e))
}

/// Hellos, where a session is asked for.
async fn greet(lane: &mut Lane) -> Result<(), Error> {
    lane.write_all(&Hello::ours(Role::Bootstrap).encode()).await?;
    lane.flush().await?;
    let mut hello = [0; HELLO_LEN];
    lane.read_exact(&mut hello).await?;
    let peer = lane.peer();
    Hello::accept(&hello, Role::Bootstrap).map(drop).map_err(|source| Error::Hello { peer, source })
}

/// A peer that closes instead of an answer does not admit us. Under TLS 1.3 a refused client key
/// shows only when the first answer is read.
fn why_closed(error: Error, peer: SocketAddr) -> Error {
    match error {
        Error::Io(e) if tls_error(&e).is_some() => explain(&e, peer),
        Error::Closed => Error::NotAdmitted { peer },
        other => other,
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn explain(error: &io::Error, peer: SocketAddr) -> Error {
    match tls_error(error) {
        Some(e) if is_wrong_key(e) => Error::WrongKey { peer },
        Some(rustls::Error::AlertReceived(_)) => Error::NotAdmitted { peer },
        Some(e) => Error::NotTls { peer, detail: e.to_string() },
        None => Error::NotTls { peer, detail: error.to_string() },
    }
}
