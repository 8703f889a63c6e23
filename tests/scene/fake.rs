//! A receiver that is none: it answers the first exchange as one would, and then something else
//! listens at its port.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use lanes::identity::{Fingerprint, Identity};
use lanes::listen::{self, Doorkeeper, Guests, Pass};
use lanes::{tls, tune::Tuning};
use proto::control::{self, Bootstrap, BootstrapReply, SessionId, Transport};
use proto::join::{Request, Secret};
use proto::version::{Hello, Role};

use super::{HANG, Scene};

/// Opens both directions of the first exchange.
pub fn opening(hello: Hello) -> Vec<u8> {
    [b"\0vmferry bootstrap\0", &hello.encode()[..]].concat()
}

/// A remote shell that does what `lines` of sh say.
pub fn shell(scene: &Scene, lines: &str) -> String {
    let path = scene.here.path().join("shell");
    fs::write(&path, lines).unwrap();
    format!("sh {}", path.display())
}

const SESSION: SessionId = SessionId([7; 16]);

/// A remote shell that tells of a receiver with this key at this port.
pub fn announcing(scene: &Scene, fingerprint: [u8; 32], port: u16) -> String {
    let here = |name: &str| scene.here.path().join(name);
    let addresses = vec!["127.0.0.1".into()];
    let ready = BootstrapReply::Ready { fingerprint, session: SESSION, port, addresses };
    let reply = [opening(Hello::ours(Role::Bootstrap)), control::encode(&ready).unwrap()].concat();
    fs::write(here("reply"), reply).unwrap();
    let request = opening(Hello::ours(Role::Bootstrap)).len() + control::encode(&request()).unwrap().len();
    let (asked, reply) = (here("request"), here("reply"));
    shell(
        scene,
        &format!("head -c {request} >{0}.new; mv {0}.new {0}; cat {1}", asked.display(), reply.display()),
    )
}

/// What a sender without options asks, but for its keys.
fn request() -> Bootstrap {
    Bootstrap {
        fingerprint: [0; 32],
        secret: Secret([0; 32]),
        transport: Transport::Tls,
        ports: None,
        engine: "auto".into(),
        direct: true,
        memory: 0,
        dead_after_ms: 30_000,
        nice: false,
        patience_ms: 120_000,
    }
}

/// The request that came in through [`announcing`].
fn asked(at: &Path) -> Bootstrap {
    let bytes = fs::read(at).unwrap();
    control::decode(&bytes[opening(Hello::ours(Role::Bootstrap)).len() + 4..]).unwrap()
}

/// What came in at a port, per connection.
pub type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// A port that answers every connection with `words`, then only listens.
pub fn talker(words: &'static [u8]) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Heard::default();
    let all = heard.clone();
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let all = all.clone();
            thread::spawn(move || {
                let _ = socket.write_all(words);
                let mut bytes = Vec::new();
                let _ = socket.read_to_end(&mut bytes);
                all.lock().unwrap().push(bytes);
            });
        }
    });
    (port, heard)
}

/// A port that closes every connection at once.
pub fn closer() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().for_each(drop));
    port
}

/// What somebody has who poses as the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stolen {
    /// A key of their own.
    Nothing,
    /// The receiver's key, but not the session's secret.
    Key,
    /// Key and secret; they expect another sender, though.
    KeyAndSecret,
}

/// Lets in whoever has the pass.
struct AnyOf(Pass);

impl Guests for AnyOf {
    fn pass(&self, _: &SessionId) -> Option<Pass> {
        Some(self.0.clone())
    }

    fn welcome(&self, _: &Request) -> bool {
        true
    }
}

/// A remote shell that tells of a receiver, and a TLS peer where that receiver should be.
pub fn impostor(scene: &Scene, stolen: Stolen) -> String {
    let announced = Identity::one_time().unwrap();
    let key = if stolen == Stolen::Nothing { Identity::one_time().unwrap() } else { announced.clone() };
    let (listener, port) = listen::bind(None).unwrap();
    let request = scene.here.path().join("request");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let asked = asked(&request);
                let (sender, secret) = match stolen {
                    Stolen::KeyAndSecret => ([0; 32], asked.secret),
                    _ => (asked.fingerprint, Secret([0; 32])),
                };
                let sender = Fingerprint(sender);
                let keeper = Doorkeeper {
                    config: tls::server(&key, tls::pin(sender)).unwrap(),
                    tuning: Tuning { unsent: 0, dead_after: HANG },
                };
                let pass = Pass { transport: Transport::Tls, secret, peer: sender };
                let _ = keeper.admit(socket, &AnyOf(pass)).await;
            }
        });
    });
    announcing(scene, announced.fingerprint().0, port)
}
