//! The receiver's end: let in what belongs to the session, and nothing else.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use proto::control::{CONTROL, SessionId, Transport};
use proto::join::{self, REQUEST_LEN, Request, Secret, Transcript};
use proto::version::{HELLO_LEN, Hello, HelloError, MAGIC, Role};
use rustls::{AlertDescription, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::identity::Fingerprint;
use crate::stream::{Connection, Lane, buffered};
use crate::tls::{EXPORTER_LABEL, is_wrong_key};
use crate::tune::{Tuning, apply, listen};
use crate::{Error, identity};

/// A stranger has so long for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Opens the port: the first free one of an inclusive range, or any. Returns it with its number.
///
/// # Errors
/// [`Error::Listen`]
pub fn bind(ports: Option<(u16, u16)>) -> Result<(TcpListener, u16), Error> {
    let (first, last) = ports.unwrap_or((0, 0));
    let what = || if first == last { format!("port {first}") } else { format!("ports {first}-{last}") };
    let mut reason = std::io::ErrorKind::InvalidInput.into();
    for port in first..=last {
        match listen(port).and_then(|l| l.local_addr().map(|a| (l, a.port()))) {
            Ok(bound) => return Ok(bound),
            Err(e) => reason = e,
        }
    }
    Err(Error::Listen { what: what(), source: reason })
}

/// What a door must know of a session to let its lanes in.
#[derive(Clone, Debug)]
pub struct Pass {
    /// How data lanes come; others are turned away. Control is TLS always.
    pub transport: Transport,
    /// The session's secret.
    pub secret: Secret,
    /// Whose key opened the session: TLS lanes come with the same one.
    pub peer: Fingerprint,
}

/// Whom a door lets in.
pub trait Guests {
    /// What a lane of this session has to prove.
    fn pass(&self, session: &SessionId) -> Option<Pass>;

    /// Whether a lane that is proven to come from the session's sender may join now.
    fn welcome(&self, request: &Request) -> bool;

    /// Whether holders of an accepted key may ask for a session.
    fn hears_callers(&self) -> bool {
        false
    }
}

/// Somebody who was let in.
#[derive(Debug)]
pub enum Visitor {
    /// A connection of a session.
    Lane(Request, Lane),
    /// The holder of an accepted key, over TLS, who has a request to make.
    Caller(Fingerprint, Lane),
}

/// Admits connections.
#[derive(Clone, Debug)]
pub struct Doorkeeper {
    /// TLS, and whose keys are accepted.
    pub config: Arc<ServerConfig>,
    /// Socket options.
    pub tuning: Tuning,
}

impl Doorkeeper {
    /// Handshake, hello, proof.
    ///
    /// # Errors
    /// Why the connection was turned away. Nothing of any session has changed.
    pub async fn admit(&self, socket: TcpStream, guests: &impl Guests) -> Result<Visitor, Error> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        let work = async {
            apply(&socket, &self.tuning)?;
            let connection = self.receive(socket, peer).await?;
            check(Lane::new(connection, local, peer), guests).await
        };
        let seconds = HANDSHAKE.as_secs();
        timeout(HANDSHAKE, work).await.unwrap_or(Err(Error::NoAnswer { peer, seconds, connected: true }))
    }

    /// TLS, or our hello in the clear, which no TLS begins like.
    async fn receive(&self, socket: TcpStream, peer: SocketAddr) -> Result<Connection, Error> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 1 && first[0] == MAGIC[0] {
            return Ok(Connection::Tcp(socket));
        }
        let tls = TlsAcceptor::from(self.config.clone()).accept(buffered(socket)).await;
        let tls = tls.map_err(|e| match e.get_ref().and_then(|i| i.downcast_ref::<rustls::Error>()) {
            Some(inner) if is_wrong_key(inner) => Error::WrongKey { peer },
            Some(rustls::Error::AlertReceived(AlertDescription::AccessDenied)) => Error::Untrusted { peer },
            _ => Error::NotTls { peer, detail: e.to_string() },
        })?;
        Ok(Connection::Tls(Box::new(tls.into())))
    }
}

async fn check(mut lane: Lane, guests: &impl Guests) -> Result<Visitor, Error> {
    let peer = lane.peer();
    let key = lane.peer_key();
    let mut hello = [0; HELLO_LEN];
    lane.read_exact(&mut hello).await?;
    let role = Hello::parse(&hello).map(|(_, role)| role);
    // Ours goes out even when theirs does not fit, so that both can say why.
    let mut answer = Hello::ours(role.unwrap_or(Role::Lane)).encode().to_vec();
    match (role, key) {
        (Err(source), _) => {
            lane.write_all(&answer).await?;
            lane.flush().await?;
            return Err(Error::Hello { peer, source });
        }
        (Ok(Role::Bootstrap), Some(key)) if guests.hears_callers() => {
            lane.write_all(&answer).await?;
            lane.flush().await?;
            return Ok(Visitor::Caller(key, lane));
        }
        (Ok(Role::Bootstrap), _) => return Err(Error::Hello { peer, source: HelloError::WrongRole }),
        (Ok(Role::Lane), _) => {}
    }
    let mut request = [0; REQUEST_LEN];
    lane.read_exact(&mut request).await?;
    let request = Request::decode(&request);
    let Some(pass) = guests.pass(&request.session) else { return Err(Error::NotAdmitted { peer }) };
    let nonce = identity::random()?;
    let exporter = lane.exporter(EXPORTER_LABEL)?;
    let transcript =
        Transcript { secret: &pass.secret, request: &request, nonce: &nonce, exporter: &exporter };
    answer.extend_from_slice(&nonce);
    answer.extend_from_slice(&transcript.receiver_proof());
    lane.write_all(&answer).await?;
    lane.flush().await?;
    let mut proof = [0; join::SECRET_LEN];
    lane.read_exact(&mut proof).await?;
    if !join::proofs_equal(&proof, &transcript.sender_proof()) {
        return Err(Error::NotAdmitted { peer });
    }
    lane.protect(&transcript);
    let as_agreed = match key {
        Some(key) => key == pass.peer && (request.lane == CONTROL || pass.transport == Transport::Tls),
        None => request.lane != CONTROL && pass.transport == Transport::Tcp,
    };
    let admitted = as_agreed && guests.welcome(&request);
    lane.write_u8(u8::from(!admitted)).await?;
    lane.flush().await?;
    if admitted { Ok(Visitor::Lane(request, lane)) } else { Err(Error::NotAdmitted { peer }) }
}
