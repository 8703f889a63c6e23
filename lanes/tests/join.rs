//! Who gets in: pinned keys, secrets, sessions, strangers.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Duration;

use lanes::dial::Dialer;
use lanes::identity::{Identity, random};
use lanes::listen::{self, Doorkeeper};
use lanes::tune::{SourcePorts, Tuning};
use lanes::{Error, Lane, tls};
use proto::control::{LaneId, SessionId};
use proto::join::{Request, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const TUNING: Tuning = Tuning { unsent: 1 << 20, dead_after: Duration::from_secs(5) };

struct Pair {
    dialer: Dialer,
    keeper: Doorkeeper,
    listener: TcpListener,
    at: SocketAddr,
}

fn pair() -> Pair {
    let (ours, theirs) = (Identity::one_time().unwrap(), Identity::one_time().unwrap());
    let (secret, session) = (Secret(random().unwrap()), SessionId(random().unwrap()));
    let (listener, port) = listen::bind(None).unwrap();
    Pair {
        dialer: Dialer {
            config: tls::client(&ours, theirs.fingerprint()).unwrap(),
            secret: secret.clone(),
            session,
            epoch: 1,
            ports: SourcePorts::starting_at(u16::from_le_bytes(random().unwrap())),
            tuning: TUNING,
            patience: Duration::from_secs(5),
        },
        keeper: Doorkeeper {
            config: tls::server(&theirs, ours.fingerprint()).unwrap(),
            secret,
            session,
            tuning: TUNING,
        },
        listener: TcpListener::from_std(listener).unwrap(),
        at: SocketAddr::from(([127, 0, 0, 1], port)),
    }
}

type Admitted = JoinHandle<Result<(Request, Lane), Error>>;

fn accept_one(keeper: Doorkeeper, listener: TcpListener) -> Admitted {
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        keeper.admit(socket, |r| r.lane.0 != 13).await
    })
}

#[tokio::test]
async fn a_lane_joins_and_carries_bytes() {
    let p = pair();
    let server = accept_one(p.keeper, p.listener);
    let mut ours = p.dialer.join(LaneId(3), p.at).await.unwrap();
    let (request, mut theirs) = server.await.unwrap().unwrap();
    assert_eq!((request.lane, request.epoch), (LaneId(3), 1));
    let payload = vec![7u8; 3 << 20];
    let want = payload.clone();
    let sending = tokio::spawn(async move {
        ours.send(&mut [IoSlice::new(b"head"), IoSlice::new(&[]), IoSlice::new(&payload)]).await.unwrap();
        ours.close().await.unwrap();
    });
    let mut got = vec![0; 4 + want.len()];
    theirs.receive(&mut got).await.unwrap();
    assert_eq!(&got[..4], b"head");
    assert_eq!(&got[4..], want);
    assert!(matches!(theirs.receive(&mut [0]).await, Err(Error::Closed)));
    sending.await.unwrap();
}

/// The server's key, the client's key, the secret, the session, the lane: each alone keeps out.
#[tokio::test]
async fn wrong_key_secret_session_or_lane_is_refused() {
    let stranger = || Identity::one_time().unwrap();
    type Spoil = Box<dyn Fn(&mut Pair)>;
    let cases: Vec<(&str, Spoil)> = vec![
        (
            "server key",
            Box::new(move |p| p.dialer.config = tls::client(&stranger(), stranger().fingerprint()).unwrap()),
        ),
        ("secret", Box::new(|p| p.dialer.secret = Secret(random().unwrap()))),
        ("session", Box::new(|p| p.dialer.session = SessionId(random().unwrap()))),
    ];
    for (what, spoil) in cases {
        let mut p = pair();
        spoil(&mut p);
        let server = accept_one(p.keeper, p.listener);
        let error = p.dialer.join(LaneId(1), p.at).await.unwrap_err();
        assert!(matches!(error, Error::WrongKey { .. } | Error::NotAdmitted { .. }), "{what}: {error}");
        assert!(server.await.unwrap().is_err(), "{what}");
    }
    let p = pair();
    let server = accept_one(p.keeper, p.listener);
    let error = p.dialer.join(LaneId(13), p.at).await.unwrap_err();
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error}");
    assert!(server.await.unwrap().is_err());
}

#[tokio::test]
async fn an_unknown_client_key_is_refused_by_the_receiver() {
    let p = pair();
    let theirs = Identity::one_time().unwrap();
    let keeper = Doorkeeper {
        config: tls::server(&theirs, Identity::one_time().unwrap().fingerprint()).unwrap(),
        ..p.keeper
    };
    let dialer = Dialer {
        config: tls::client(&Identity::one_time().unwrap(), theirs.fingerprint()).unwrap(),
        ..p.dialer
    };
    let server = accept_one(keeper, p.listener);
    let error = dialer.join(LaneId(1), p.at).await.unwrap_err();
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error}");
    assert!(matches!(server.await.unwrap(), Err(Error::WrongKey { .. })));
}

#[tokio::test]
async fn garbage_on_either_side_is_named() {
    for garbage in
        [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 64], &[0xff; 300]]
    {
        let p = pair();
        let server = accept_one(p.keeper, p.listener);
        let mut client = TcpStream::connect(p.at).await.unwrap();
        client.write_all(garbage).await.unwrap();
        client.shutdown().await.unwrap();
        assert!(server.await.unwrap().is_err());

        let silly = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = silly.local_addr().unwrap();
        let serve = tokio::spawn(async move {
            let (mut s, _) = silly.accept().await.unwrap();
            s.write_all(garbage).await.unwrap();
            let _ = s.read(&mut [0; 4096]).await;
        });
        let error = p.dialer.join(LaneId(1), at).await.unwrap_err();
        assert!(matches!(error, Error::NotTls { .. }), "{error}");
        serve.await.unwrap();
    }
}

#[tokio::test]
async fn closed_port_is_refused_and_a_second_address_is_tried() {
    let p = pair();
    let closed = {
        let l = TcpListener::bind("127.0.0.1:0").await.unwrap();
        l.local_addr().unwrap()
    };
    let error = p.dialer.join(LaneId(1), closed).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let server = accept_one(p.keeper, p.listener);
    let lane = p.dialer.control(&[closed, p.at]).await.unwrap();
    assert_eq!(lane.peer(), p.at);
    server.await.unwrap().unwrap();
}
