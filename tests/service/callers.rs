//! Those who speak the protocol, and do not keep to it: with keys that are not known, and with keys
//! that are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use lanes::identity::Identity;
use proto::control::{BootstrapReply, CONTROL, Open, SessionId, ToReceiver, ToSender, Transport};
use proto::join::{CHALLENGE_LEN, REQUEST_LEN, SECRET_LEN, Secret};
use proto::manifest::{ImageEntry, SourceIdentity};
use proto::version::HELLO_LEN;
use testbed::images;

use crate::attack::{
    self, Tls, caller, connect, hear, identity, is_closed, is_refused, join, request, say, secure,
};
use crate::door::{LITTLE, beside};
use crate::house::{House, MIB};
use crate::scene::tap::Tap;
use crate::scene::{Attempt, hurry, says, slow_link};

const MINE: Secret = Secret([1; 32]);
const WRONG: Secret = Secret([2; 32]);

#[test]
fn a_stranger_with_a_key_of_its_own() {
    beside(&[], LITTLE, |house, service, _| {
        let stranger = Identity::one_time().unwrap();
        for _ in 0..20 {
            is_refused(&mut secure(service.address(), &stranger));
        }
        service.until_reason("turned_away", &["its key is not in the allow file"]);
        // The command, with such a key, says what to do.
        house.key("stranger");
        house.image("other.img", MIB);
        let told = house.sent(service, "stranger", &["other.img"], "").failed(3);
        says(&told, &["does not know this key", "vmferry allow", &house.key("stranger")]);
    });
}

#[test]
fn a_known_key_that_asks_for_nonsense() {
    beside(&[], LITTLE, |house, service, _| {
        house.allow("odd", &[]);
        service.reload();
        service.until("reloaded", |_| true);
        let (at, key) = (service.address(), identity(&house.path("odd")));
        let requests: [(&[u8], &str); 3] = [
            (&[40, 0, 0, 0], "odd made no request: bad message"),
            (&[0, 0, 0, 0, 0], "odd made no request: bad message"),
            (&[0xff, 0xff, 0xff, 0x7f, 0], "2147483647 bytes where 16384 are allowed"),
        ];
        for (head, why) in requests {
            let mut stream = caller(at, &key);
            stream.write_all(head).unwrap();
            stream.write_all(&[0xff; 64]).unwrap();
            let _ = stream.flush();
            is_closed(&mut stream);
            service.until_reason("turned_away", &[why]);
        }
        for (engine, dead_after_ms, why) in
            [("quantum", 30_000, "quantum"), ("auto", 1, "peer timeout of 1 ms")]
        {
            let mut stream = caller(at, &key);
            let normal = request(&key, &MINE, Transport::Tls);
            say(&mut stream, &proto::control::Bootstrap { engine: engine.into(), dead_after_ms, ..normal });
            let BootstrapReply::Fail(failure) = hear(&mut stream) else { panic!("{why}: accepted") };
            says(&failure.reason, &[why]);
            service.until_reason("refused", &[why]);
        }
    });
}

/// Many at once: they cost little, and go.
#[test]
fn a_known_key_that_asks_for_nothing() {
    beside(&[], LITTLE + 32 * MIB, |house, service, _| {
        house.allow("slow", &[]);
        service.reload();
        service.until("reloaded", |_| true);
        let (at, key) = (service.address(), identity(&house.path("slow")));
        let mut silent: Vec<Tls> = (0..100).map(|_| caller(at, &key)).collect();
        service.until_reason("turned_away", &["slow asks too often at once"]);
        silent.iter_mut().for_each(is_closed);
    });
}

#[test]
fn who_asks_for_nothing_is_told_of() {
    let house = House::with(&["slow"]);
    let service = house.start(&[]);
    let key = identity(&house.path("slow"));
    let mut silent = caller(service.address(), &key);
    drop(caller(service.address(), &key));
    service.until_reason("turned_away", &["slow made no request", "closed"]);
    is_closed(&mut silent);
    service.until_reason("turned_away", &["slow made no request within 10 s"]);
}

/// Opens a job with one small image.
pub fn job(lanes: u32) -> ToReceiver {
    let image = ImageEntry {
        name: "mine.img".into(),
        size: 2 * MIB,
        sector: None,
        allocated: 0,
        mode: 0o600,
        uid: 0,
        gid: 0,
        xattrs: vec![],
        identity: SourceIdentity { dev: 1, ino: 2, mtime_ns: 3, ctime_ns: 4 },
        storage: Default::default(),
    };
    ToReceiver::Open(Open {
        job: [0; 16],
        epoch: 1,
        chunk: 1 << 20,
        lanes,
        path: String::new(),
        force: false,
        dry_run: false,
        sync_window: None,
        readback: false,
        delta: proto::control::Delta::No,
        chown: None,
        images: vec![image],
    })
}

/// Another allowed key that knows which session, and one that knows its secret, too: neither gets
/// into it, and neither keeps its own sender out of it.
#[test]
fn a_session_belongs_to_its_key() {
    // The job that is begun below has buffers.
    beside(&[], LITTLE + 32 * MIB, |house, service, _| {
        house.allow("owner", &[]);
        house.allow("thief", &[]);
        service.reload();
        service.until("reloaded", |_| true);
        let at = service.address();
        let (owner, thief) = (identity(&house.path("owner")), identity(&house.path("thief")));
        let session = attack::session(at, &owner, &MINE, Transport::Tls);
        let attempts = |lane| {
            for (key, secret) in [(&thief, &WRONG), (&thief, &MINE), (&owner, &WRONG)] {
                assert!(join(secure(at, key), session, lane, secret).is_none());
            }
            // A session that is not there.
            assert!(join(secure(at, &owner), SessionId([9; 16]), lane, &MINE).is_none());
        };
        attempts(CONTROL.0);
        // Before there is a job, nobody may bring data.
        assert!(join(secure(at, &owner), session, 1, &MINE).is_none());
        let mut control = join(secure(at, &owner), session, CONTROL.0, &MINE).unwrap();
        assert!(join(secure(at, &owner), session, CONTROL.0, &MINE).is_none(), "there is one");
        say(&mut control, &job(2));
        assert!(matches!(hear(&mut control), ToSender::Accept(_)));
        attempts(1);
        // In the clear, where TLS was agreed upon.
        let mut plain = connect(at);
        plain.write_all(&proto::version::Hello::ours(proto::version::Role::Lane).encode()).unwrap();
        plain.write_all(&[0; REQUEST_LEN]).unwrap();
        is_closed(&mut plain);
        let _first = join(secure(at, &owner), session, 1, &MINE).unwrap();
        assert!(join(secure(at, &owner), session, 1, &MINE).is_none(), "a lane joins once");
        let _second = join(secure(at, &owner), session, 2, &MINE).unwrap();
        assert!(join(secure(at, &owner), session, 3, &MINE).is_none(), "two were announced");
        // Nobody else takes the place of the control connection either; its own sender may.
        attempts(CONTROL.0);
        let mut control = join(secure(at, &owner), session, CONTROL.0, &MINE).unwrap();
        service.until_reason("turned_away", &["it does not belong to a session"]);
        // It is not finished with what did not arrive.
        say(&mut control, &ToReceiver::Finish { image: 0, tree: [0; 32] });
        loop {
            match hear(&mut control) {
                ToSender::Fail(failure) => break says(&failure.reason, &["broke the protocol", "missing"]),
                _ => continue,
            }
        }
        drop(control);
        service.until_reason("failed", &["broke the protocol"]);
        assert!(!house.listed().iter().any(|name| name.contains("mine")), "{:?}", house.listed());
    });
}

/// Everything that a lane said to join is said once more, while its job goes on and afterwards.
#[test]
fn a_join_that_was_recorded_is_worth_nothing() {
    let link = slow_link();
    let house = House::with(&["honest"]);
    let service = house.start_on(&link, &[]);
    let tap = Tap::between(&link, service.port, None);
    let image = house.image("disk.img", 24 * MIB);
    let at_tap = format!("{}:{}", link.a().address(), service.port);
    house.trust("honest", &at_tap);
    let mut send = link.a().command(crate::ferry::vmferry());
    send.args(["send", "--json", "--log-interval", "0.1", "--transport", "tcp", "--config"]);
    send.arg(house.path("honest")).arg(&image).arg(format!("vmferry://{at_tap}/"));
    let mut attempt = Attempt::start(send);
    attempt.until_copying();
    let carried = tap.carried();
    let lane = carried.iter().find(|[to, _]| to.starts_with(b"vmferry\n")).unwrap();
    let said = &lane[0][..HELLO_LEN + REQUEST_LEN + SECRET_LEN];
    let replay = || {
        link.b()
            .inside(|| {
                let mut socket = connect(service.address());
                socket.write_all(said).unwrap();
                // Its challenge, if there is one, and then the end; never the word that admits.
                let mut heard = Vec::new();
                let _ = socket.read_to_end(&mut heard);
                assert!(heard.len() <= HELLO_LEN + CHALLENGE_LEN, "{} bytes", heard.len());
                heard.len()
            })
            .unwrap()
    };
    assert_eq!(replay(), HELLO_LEN + CHALLENGE_LEN, "the session is there");
    // Which session it is can be read on the way: another allowed key does not get in with that.
    house.allow("thief", &[]);
    service.reload();
    service.until("reloaded", |_| true);
    let session = SessionId(said[HELLO_LEN..HELLO_LEN + 16].try_into().unwrap());
    let thief = identity(&house.path("thief"));
    for lane in [0, 1, 200] {
        let tried =
            link.b().inside(|| join(secure(service.address(), &thief), session, lane, &MINE).is_some());
        assert!(!tried.unwrap(), "lane {lane}");
    }
    service.until_reason("turned_away", &["it does not belong to a session"]);
    assert!(service.said("done").is_empty(), "it is still under way");
    hurry(&link);
    attempt.wait().done();
    images::equal(&image, &house.into.join("disk.img")).unwrap();
    service.until("done", |_| true);
    assert_eq!(replay(), 0, "the session is gone");
}

/// A door under fire from all of them at once, over and over, for as long as the job takes.
#[test]
fn all_of_them_together() {
    beside(&[], 100 * MIB, |house, service, host| {
        let (at, known) = (service.address(), identity(&house.path("honest")));
        let stranger = Identity::one_time().unwrap();
        let hello = attack::client_hello(at, &stranger);
        host.inside(|| {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut held: Vec<TcpStream> = Vec::new();
                        for number in 0..250 {
                            let mut socket = connect(at);
                            match number % 5 {
                                0 => held.push(socket),
                                1 => {
                                    let _ = socket.write_all(&hello[..hello.len() / 2]);
                                    held.push(socket);
                                }
                                2 => drop(socket),
                                3 => {
                                    let mut stream = secure(at, &stranger);
                                    let _ = stream.write_all(&[0; 100]).and_then(|()| stream.flush());
                                }
                                _ => {
                                    let joined = join(secure(at, &known), SessionId([3; 16]), number, &WRONG);
                                    assert!(joined.is_none());
                                }
                            }
                        }
                    });
                }
            });
        })
        .unwrap();
    });
}
