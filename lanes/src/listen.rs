//! The receiver's end: let in what belongs to the session, and nothing else.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use proto::control::{CONTROL, SessionId, Transport};
use proto::join::{self, REQUEST_LEN, Request, Secret, Transcript};
use proto::version::{HELLO_LEN, Hello, MAGIC, Role};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

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

/// Admits connections to one session.
#[derive(Clone, Debug)]
pub struct Doorkeeper {
    /// TLS with the pinned key of the sender.
    pub config: Arc<ServerConfig>,
    /// How data lanes come; others are turned away. Control is TLS always.
    pub transport: Transport,
    /// The session's secret.
    pub secret: Secret,
    /// The session.
    pub session: SessionId,
    /// Socket options.
    pub tuning: Tuning,
}

impl Doorkeeper {
    /// Handshake, hello, proof. The lane is admitted when `welcome` agrees to the request, which
    /// by then is proven to come from the session's sender.
    ///
    /// # Errors
    /// Why the connection was turned away. Nothing of the session has changed.
    pub async fn admit(
        &self,
        socket: TcpStream,
        welcome: impl FnOnce(&Request) -> bool,
    ) -> Result<(Request, Lane), Error> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        let work = async {
            apply(&socket, &self.tuning)?;
            let connection = self.receive(socket, peer).await?;
            let came_as = match connection {
                Connection::Tls(_) => Transport::Tls,
                Connection::Tcp(_) => Transport::Tcp,
            };
            let mut lane = Lane::new(connection, local, peer);
            let request = self.check(&mut lane).await?;
            let due = if request.lane == CONTROL { Transport::Tls } else { self.transport };
            let admitted = came_as == due && welcome(&request);
            lane.write_u8(u8::from(!admitted)).await?;
            lane.flush().await?;
            if admitted { Ok((request, lane)) } else { Err(Error::NotAdmitted { peer }) }
        };
        timeout(HANDSHAKE, work).await.unwrap_or(Err(Error::NoAnswer { peer, seconds: HANDSHAKE.as_secs() }))
    }

    /// TLS, or our hello in the clear where that was asked for.
    async fn receive(&self, socket: TcpStream, peer: SocketAddr) -> Result<Connection, Error> {
        let mut first = [0];
        if self.transport == Transport::Tcp && socket.peek(&mut first).await? == 1 && first[0] == MAGIC[0] {
            return Ok(Connection::Tcp(socket));
        }
        let tls = TlsAcceptor::from(self.config.clone()).accept(buffered(socket)).await;
        let tls = tls.map_err(|e| match e.get_ref().and_then(|i| i.downcast_ref::<rustls::Error>()) {
            Some(inner) if is_wrong_key(inner) => Error::WrongKey { peer },
            _ => Error::NotTls { peer, detail: e.to_string() },
        })?;
        Ok(Connection::Tls(Box::new(tls.into())))
    }

    async fn check(&self, lane: &mut Lane) -> Result<Request, Error> {
        let peer = lane.peer();
        let (mut hello, mut request) = ([0; HELLO_LEN], [0; REQUEST_LEN]);
        lane.read_exact(&mut hello).await?;
        let version = Hello::accept(&hello, Role::Lane);
        let nonce = identity::random()?;
        // Ours goes out even when theirs does not fit, so that both can say why.
        let mut answer = Hello::ours(Role::Lane).encode().to_vec();
        if let Err(source) = version {
            lane.write_all(&answer).await?;
            lane.flush().await?;
            return Err(Error::Hello { peer, source });
        }
        lane.read_exact(&mut request).await?;
        let request = Request::decode(&request);
        if request.session != self.session {
            return Err(Error::NotAdmitted { peer });
        }
        let exporter = lane.exporter(EXPORTER_LABEL)?;
        let transcript =
            Transcript { secret: &self.secret, request: &request, nonce: &nonce, exporter: &exporter };
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
        Ok(request)
    }
}
