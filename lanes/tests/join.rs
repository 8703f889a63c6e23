//! Who gets in: pinned keys, secrets, sessions, strangers.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Duration;

use lanes::dial::Dialer;
use lanes::identity::{Identity, random};
use lanes::listen::{self, Doorkeeper, Guests, Pass, Visitor};
use lanes::tune::{SourcePorts, Tuning};
use lanes::{Error, Lane, tls};
use proto::control::{CONTROL, LaneId, SessionId, Transport};
use proto::join::{Request, Secret};
use proto::seal::TAG_LEN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const TUNING: Tuning = Tuning { unsent: 1 << 20, dead_after: Duration::from_secs(5) };

/// One session; lane 13 is not welcome.
struct Book {
    session: SessionId,
    pass: Pass,
}

impl Guests for Book {
    fn pass(&self, session: &SessionId) -> Option<Pass> {
        (*session == self.session).then(|| self.pass.clone())
    }

    fn welcome(&self, request: &Request) -> bool {
        request.lane.0 != 13
    }
}

struct Pair {
    dialer: Dialer,
    keeper: Doorkeeper,
    book: Book,
    listener: TcpListener,
    at: SocketAddr,
}

fn pair() -> Pair {
    let (ours, theirs) = (Identity::one_time().unwrap(), Identity::one_time().unwrap());
    let (secret, session) = (Secret(random().unwrap()), SessionId(random().unwrap()));
    let (listener, port) = listen::bind(None).unwrap();
    Pair {
        dialer: Dialer {
            config: tls::client(&ours, tls::pin(theirs.fingerprint())).unwrap(),
            transport: Transport::Tls,
            secret: secret.clone(),
            session,
            epoch: 1,
            ports: SourcePorts::starting_at(u16::from_le_bytes(random().unwrap())),
            tuning: TUNING,
            patience: Duration::from_secs(5),
        },
        keeper: Doorkeeper {
            config: tls::server(&theirs, tls::pin(ours.fingerprint())).unwrap(),
            tuning: TUNING,
        },
        book: Book { session, pass: Pass { transport: Transport::Tls, secret, peer: ours.fingerprint() } },
        listener: TcpListener::from_std(listener).unwrap(),
        at: SocketAddr::from(([127, 0, 0, 1], port)),
    }
}

type Admitted = JoinHandle<Result<(Request, Lane), Error>>;

fn accept_one(keeper: Doorkeeper, book: Book, listener: TcpListener) -> Admitted {
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        match keeper.admit(socket, &book).await? {
            Visitor::Lane(request, lane) => Ok((request, lane)),
            other => panic!("{other:?}"),
        }
    })
}

#[tokio::test]
async fn a_lane_joins_and_carries_bytes() {
    let p = pair();
    let server = accept_one(p.keeper, p.book, p.listener);
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
            Box::new(move |p| {
                p.dialer.config = tls::client(&stranger(), tls::pin(stranger().fingerprint())).unwrap()
            }),
        ),
        ("secret", Box::new(|p| p.dialer.secret = Secret(random().unwrap()))),
        ("session", Box::new(|p| p.dialer.session = SessionId(random().unwrap()))),
    ];
    for (what, spoil) in cases {
        let mut p = pair();
        spoil(&mut p);
        let server = accept_one(p.keeper, p.book, p.listener);
        let error = p.dialer.join(LaneId(1), p.at).await.unwrap_err();
        assert!(matches!(error, Error::WrongKey { .. } | Error::NotAdmitted { .. }), "{what}: {error}");
        assert!(server.await.unwrap().is_err(), "{what}");
    }
    let p = pair();
    let server = accept_one(p.keeper, p.book, p.listener);
    let error = p.dialer.join(LaneId(13), p.at).await.unwrap_err();
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error}");
    assert!(server.await.unwrap().is_err());
}

#[tokio::test]
async fn an_unknown_client_key_is_refused_by_the_receiver() {
    let p = pair();
    let theirs = Identity::one_time().unwrap();
    let keeper = Doorkeeper {
        config: tls::server(&theirs, tls::pin(Identity::one_time().unwrap().fingerprint())).unwrap(),
        ..p.keeper
    };
    let dialer = Dialer {
        config: tls::client(&Identity::one_time().unwrap(), tls::pin(theirs.fingerprint())).unwrap(),
        ..p.dialer
    };
    let server = accept_one(keeper, p.book, p.listener);
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
        let server = accept_one(p.keeper, p.book, p.listener);
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
    let server = accept_one(p.keeper, p.book, p.listener);
    let lane = p.dialer.control(&[closed, p.at]).await.unwrap();
    assert_eq!(lane.peer(), p.at);
    server.await.unwrap().unwrap();
}

fn plain() -> Pair {
    let mut p = pair();
    (p.dialer.transport, p.book.pass.transport) = (Transport::Tcp, Transport::Tcp);
    p
}

/// What a man in the middle does with frames of `HEADER` bytes and their tags.
const HEADER: usize = 100;
const FRAME: usize = HEADER + TAG_LEN;

async fn frames_through(tamper: impl Fn(&mut Vec<u8>) + Send + 'static) -> (usize, Error) {
    let p = plain();
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = relay.local_addr().unwrap();
    let server = accept_one(p.keeper, p.book, p.listener);
    let (joined, join_over) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let (mut from, _) = relay.accept().await.unwrap();
        let mut to = TcpStream::connect(p.at).await.unwrap();
        tokio::select! {
            biased; // no frame slips through
            _ = join_over => {}
            done = tokio::io::copy_bidirectional(&mut from, &mut to) => panic!("{done:?}"),
        }
        let mut frames = Vec::new();
        from.read_to_end(&mut frames).await.unwrap();
        tamper(&mut frames);
        to.write_all(&frames).await.unwrap();
        to.shutdown().await.unwrap();
        let _ = to.read(&mut [0]).await;
    });
    let mut ours = p.dialer.join(LaneId(1), at).await.unwrap();
    let (_, mut theirs) = server.await.unwrap().unwrap();
    joined.send(()).unwrap();
    for i in 0..4u8 {
        let header = [i; HEADER];
        let tag = ours.tag(&header).expect("plain TCP has tags");
        ours.send(&mut [IoSlice::new(&header), IoSlice::new(&tag)]).await.unwrap();
    }
    ours.close().await.unwrap();
    let mut header = [0; HEADER];
    let mut accepted = 0;
    loop {
        match theirs.receive_header(&mut header).await {
            Ok(()) => assert_eq!(header, [accepted as u8; HEADER], "in order, unchanged"),
            Err(e) => return (accepted, e),
        }
        accepted += 1;
    }
}

#[tokio::test]
async fn on_plain_tcp_a_changed_repeated_lost_or_moved_frame_is_refused() {
    let (accepted, end) = frames_through(|_| ()).await;
    assert!(accepted == 4 && matches!(end, Error::Closed), "{accepted} {end}");
    for at in [0, HEADER / 2, HEADER - 1, HEADER, FRAME - 1] {
        let (accepted, end) = frames_through(move |f| f[FRAME + at] ^= 1).await;
        assert!(accepted == 1 && matches!(end, Error::Forged { .. }), "bit in byte {at}: {accepted} {end}");
    }
    type Tamper = fn(&mut Vec<u8>);
    let cases: [(&str, usize, Tamper); 4] = [
        ("repeated", 1, |f| {
            let again = f[..FRAME].to_vec();
            f.splice(FRAME..FRAME, again);
        }),
        ("lost", 1, |f| _ = f.drain(FRAME..2 * FRAME)),
        ("swapped", 0, |f| f.rotate_left(FRAME)),
        ("made up", 4, |f| f.extend([7; FRAME])),
    ];
    for (what, good, tamper) in cases {
        let (accepted, end) = frames_through(tamper).await;
        assert!(accepted == good && matches!(end, Error::Forged { .. }), "{what}: {accepted} {end}");
    }
}

/// A lane in the clear gets in only where both ends asked for it, and control never does.
#[tokio::test]
async fn plain_tcp_is_never_fallen_back_to() {
    let mut p = pair();
    p.dialer.transport = Transport::Tcp;
    let server = accept_one(p.keeper, p.book, p.listener);
    assert!(p.dialer.join(LaneId(1), p.at).await.is_err());
    assert!(matches!(server.await.unwrap(), Err(Error::NotAdmitted { .. })));

    let mut p = plain();
    p.dialer.transport = Transport::Tls;
    let server = accept_one(p.keeper, p.book, p.listener);
    assert!(p.dialer.join(LaneId(1), p.at).await.is_err());
    assert!(matches!(server.await.unwrap(), Err(Error::NotAdmitted { .. })));

    let p = plain();
    let server = accept_one(p.keeper, p.book, p.listener);
    let control = p.dialer.join(CONTROL, p.at).await.unwrap();
    drop(server.await.unwrap().unwrap());
    let mut control = control;
    assert!(control.tag(b"header").is_none(), "control runs over TLS");
}

#[tokio::test]
async fn on_plain_tcp_too_a_wrong_secret_session_or_lane_is_refused() {
    type Spoil = fn(&mut Pair);
    let cases: [(&str, Spoil); 2] = [
        ("secret", |p| p.dialer.secret = Secret(random().unwrap())),
        ("session", |p| p.dialer.session = SessionId(random().unwrap())),
    ];
    for (what, spoil) in cases {
        let mut p = plain();
        spoil(&mut p);
        let server = accept_one(p.keeper, p.book, p.listener);
        let error = p.dialer.join(LaneId(1), p.at).await.unwrap_err();
        assert!(matches!(error, Error::WrongKey { .. } | Error::NotAdmitted { .. }), "{what}: {error}");
        assert!(server.await.unwrap().is_err(), "{what}");
    }
    let p = plain();
    let server = accept_one(p.keeper, p.book, p.listener);
    let error = p.dialer.join(LaneId(13), p.at).await.unwrap_err();
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error}");
    assert!(server.await.unwrap().is_err());
}

/// Both ends of a joined lane: the sender's and the receiver's.
async fn joined(transport: Transport) -> (Lane, Lane) {
    let mut p = pair();
    (p.dialer.transport, p.book.pass.transport) = (transport, transport);
    let server = accept_one(p.keeper, p.book, p.listener);
    let ours = p.dialer.join(LaneId(1), p.at).await.unwrap();
    (ours, server.await.unwrap().unwrap().1)
}

const SOON: Duration = Duration::from_millis(200);

/// A receiver that takes nothing for many times as long as silence may last, and beats.
#[tokio::test]
async fn a_lane_that_beats_is_alive_however_long_it_takes_nothing() {
    for transport in [Transport::Tls, Transport::Tcp] {
        let (mut ours, mut theirs) = joined(transport).await;
        ours.listen(SOON);
        theirs.beat(SOON);
        let payload = vec![7u8; 64 << 20];
        let want = payload.len();
        let sending = tokio::spawn(async move {
            ours.send(&mut [IoSlice::new(&payload)]).await.unwrap();
            ours.meanwhile(tokio::time::sleep(SOON * 5)).await.unwrap();
            ours
        });
        theirs.meanwhile(tokio::time::sleep(SOON * 5)).await.unwrap();
        let mut got = vec![0; want];
        theirs.receive(&mut got).await.unwrap();
        assert!(got.iter().all(|byte| *byte == 7));
        let mut end = [0];
        let mut ours = tokio::select! {
            ours = sending => ours.unwrap(),
            ended = theirs.receive(&mut end) => panic!("{ended:?}"),
        };
        drop(theirs);
        let ended = ours.meanwhile(std::future::pending::<()>()).await;
        assert!(matches!(ended, Err(Error::Closed | Error::Io(_))), "{ended:?}");
    }
}

#[tokio::test]
async fn a_lane_without_beats_is_dead_while_it_sends_and_while_it_waits() {
    for transport in [Transport::Tls, Transport::Tcp] {
        let (mut ours, theirs) = joined(transport).await;
        ours.listen(SOON);
        let silent = ours.meanwhile(std::future::pending::<()>()).await.unwrap_err();
        assert!(silent.is_silence(), "{silent}");
        assert!(silent.to_string().contains("nothing heard for"), "{silent}");
        let (mut ours, _others) = joined(transport).await;
        ours.listen(SOON);
        // More than any socket holds.
        let silent = ours.send(&mut [IoSlice::new(&vec![0; 64 << 20])]).await.unwrap_err();
        assert!(silent.is_silence(), "{silent}");
        drop(theirs);
    }
}
