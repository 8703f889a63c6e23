//! Somebody who knows the protocol and does not keep to it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lanes::identity::{Fingerprint, Identity};
use lanes::tls;
use proto::control::{self, Bootstrap, BootstrapReply, LaneId, Message, SessionId, Transport};
use proto::join::{CHALLENGE_LEN, Request, Secret, Transcript};
use proto::version::{HELLO_LEN, Hello, Role};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// Whoever waits longer hangs.
const HANG: Duration = Duration::from_secs(40);

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The key in a folder of keys.
pub fn identity(folder: &Path) -> Identity {
    Identity::from_pem(&fs::read_to_string(folder.join("key")).unwrap()).unwrap()
}

pub fn connect(at: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(at).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.set_write_timeout(Some(HANG)).unwrap();
    socket
}

/// TLS as a sender with this key speaks it, to whoever answers. Nothing is sent yet.
pub fn secure(at: SocketAddr, key: &Identity) -> Tls {
    secure_for(at, key, b"vmferry")
}

/// The same, for another protocol (ALPN).
pub fn secure_for(at: SocketAddr, key: &Identity, protocol: &[u8]) -> Tls {
    let ours = tls::client(key, Arc::new(|_: &Fingerprint| true)).unwrap();
    let mut config = tls::ClientConfig::clone(&ours);
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::IpAddress(at.ip().into());
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), connect(at))
}

/// Somebody who has come as far as to make a request.
pub fn caller(at: SocketAddr, key: &Identity) -> Tls {
    let mut stream = secure(at, key);
    stream.write_all(&Hello::ours(Role::Bootstrap).encode()).unwrap();
    stream.flush().unwrap();
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    stream
}

/// The other end says that it does not want this one. Under TLS 1.3 that is heard after the first
/// words were said.
#[track_caller]
pub fn is_refused(stream: &mut Tls) {
    let said = stream.write_all(b"vmferry\n").and_then(|()| stream.flush());
    let heard = said.and_then(|()| stream.read_exact(&mut [0])).unwrap_err();
    assert!(heard.to_string().contains("fatal alert"), "{heard}");
}

/// Whether the other end has closed it, or does within the time that nothing takes longer than.
#[track_caller]
pub fn is_closed(stream: &mut impl Read) {
    let mut rest = Vec::new();
    if let Err(e) = stream.read_to_end(&mut rest) {
        let in_time = e.kind() != std::io::ErrorKind::WouldBlock && e.kind() != std::io::ErrorKind::TimedOut;
        assert!(in_time, "it is still open");
    }
}

pub fn say<M: Message>(to: &mut impl Write, message: &M) {
    to.write_all(&control::encode(message).unwrap()).unwrap();
    to.flush().unwrap();
}

pub fn hear<M: Message>(from: &mut impl Read) -> M {
    let mut head = [0; 4];
    from.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    from.read_exact(&mut body).unwrap();
    control::decode(&body).unwrap()
}

/// What a sender asks for.
pub fn request(key: &Identity, secret: &Secret, transport: Transport) -> Bootstrap {
    Bootstrap {
        fingerprint: key.fingerprint().0,
        secret: secret.clone(),
        transport,
        ports: None,
        engine: "auto".into(),
        direct: true,
        memory: 0,
        dead_after_ms: 30_000,
        nice: false,
        patience_ms: 120_000,
    }
}

/// A session of this key's own.
pub fn session(at: SocketAddr, key: &Identity, secret: &Secret, transport: Transport) -> SessionId {
    let mut stream = caller(at, key);
    say(&mut stream, &request(key, secret, transport));
    match hear(&mut stream) {
        BootstrapReply::Ready { session, .. } => session,
        BootstrapReply::Fail(failure) => panic!("{failure}"),
    }
}

/// Tries to join a session; the connection if it was admitted.
pub fn join(mut stream: Tls, session: SessionId, lane: u32, secret: &Secret) -> Option<Tls> {
    let request = Request { session, lane: LaneId(lane), epoch: 1, nonce: [5; 32] };
    let opening = [&Hello::ours(Role::Lane).encode()[..], &request.encode()].concat();
    stream.write_all(&opening).and_then(|()| stream.flush()).ok()?;
    let mut answer = [0; HELLO_LEN + CHALLENGE_LEN];
    stream.read_exact(&mut answer).ok()?;
    let nonce: [u8; 32] = answer[HELLO_LEN..HELLO_LEN + 32].try_into().unwrap();
    let exporter = stream.conn.export_keying_material([0u8; 32], b"EXPORTER-vmferry-join", None).unwrap();
    let transcript = Transcript { secret, request: &request, nonce: &nonce, exporter: &exporter };
    stream.write_all(&transcript.sender_proof()).and_then(|()| stream.flush()).ok()?;
    let mut verdict = [1];
    stream.read_exact(&mut verdict).ok()?;
    (verdict == [0]).then_some(stream)
}

/// The first flight of a TLS 1.3 client with vmferry's ALPN: a whole ClientHello record.
pub fn client_hello(at: SocketAddr, key: &Identity) -> Vec<u8> {
    let mut stream = secure(at, key);
    let mut bytes = Vec::new();
    stream.conn.write_tls(&mut bytes).unwrap();
    bytes
}
