//! Strangers at the door, while a job goes on behind it.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lanes::identity::Identity;
use proto::version::{Hello, Role};
use testbed::images;
use testbed::net::Host;

use crate::attack::{client_hello, connect, identity, is_closed, is_refused, secure, secure_for};
use crate::house::{House, MIB, Service};
use crate::scene::{Attempt, hurry, slow_link};

/// What strangers may cost in memory who do not get as far as TLS.
pub const LITTLE: u64 = 16 * MIB;
/// What they may cost who begin with it: 512 of them at once. A thousand take 150 MiB and more.
const BEARABLE: u64 = 100 * MIB;

/// While a job goes on over a slow link, lets strangers do what they want on the service's own
/// host, where their way is short. The job ends well, and they leave nothing.
pub fn beside(words: &[&str], most: u64, attack: impl FnOnce(&House, &Service, &Host) + Send) {
    let link = slow_link();
    let house = House::with(&["honest"]);
    let mut service = house.start_on(&link, words);
    let image = house.image("disk.img", 96 * MIB);
    let mut attempt = Attempt::start(house.send_over(&link, &service, "honest", &["disk.img"]));
    attempt.until_copying();
    let (open, peak) = (service.descriptors(), service.peak());
    link.b().inside(|| attack(&house, &service, link.b())).unwrap();
    service.descriptors_back_to(open);
    let grown = service.peak() - peak;
    assert!(grown < most, "{} MiB more", grown / MIB);
    let over = [service.said("done"), service.said("failed")].concat();
    assert!(!over.iter().any(|e| e["peer"] == "honest"), "the job is no longer under way");
    hurry(&link);
    attempt.wait().done();
    images::equal(&image, &house.into.join("disk.img")).unwrap();
    assert_eq!(house.listed(), ["disk.img"]);
    assert_eq!(service.end(), 0);
    let lines = service.said("turned_away").len();
    assert!(lines <= 10, "strangers do not fill the log: {lines}");
}

#[test]
fn a_thousand_idle_connections() {
    beside(&[], LITTLE, |_, service, _| {
        let mut idle: Vec<TcpStream> = (0..1000).map(|_| connect(service.address())).collect();
        service.until_reason("turned_away", &["too many are waiting"]);
        // All of them go: some to make room, the others since they say nothing.
        idle.iter_mut().for_each(is_closed);
    });
}

/// More than the door has places for, and from one address: another one gets through.
#[test]
fn a_thousand_that_begin_a_handshake() {
    beside(&[], BEARABLE, |house, service, host| {
        let hello = client_hello(service.address(), &Identity::one_time().unwrap());
        let half = |_| {
            let mut socket = connect(service.address());
            socket.write_all(&hello[..hello.len() / 2]).unwrap();
            socket
        };
        let mut halves: Vec<TcpStream> = (0..1000).map(half).collect();
        service.until_reason("turned_away", &["too many are waiting"]);
        house.allow("late", &[]);
        service.reload();
        service.until("reloaded", |_| true);
        house.image("late.img", MIB);
        let mut send = Command::new("ip");
        send.args(["netns", "exec", host.name()]);
        Attempt::start(house.send(service, "late", &["late.img"], "")).wait().done();
        fs::remove_file(house.into.join("late.img")).unwrap();
        halves.iter_mut().for_each(is_closed);
    });
}

#[test]
fn slow_handshakes() {
    beside(&[], LITTLE, |house, service, _| {
        let (at, key) = (service.address(), identity(&house.path("honest")));
        let hello = client_hello(at, &key);
        let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(at)).collect();
        slow[..10].iter_mut().for_each(|half| half.write_all(&hello[..hello.len() / 2]).unwrap());
        // Through TLS, with a key that is known, and then half a hello.
        let mut late = secure(at, &key);
        late.write_all(&Hello::ours(Role::Lane).encode()[..12]).unwrap();
        late.flush().unwrap();
        // In the clear.
        let mut plain = connect(at);
        plain.write_all(&Hello::ours(Role::Lane).encode()[..12]).unwrap();
        let begun = Instant::now();
        for byte in hello.iter().take(hello.len() - 1) {
            let told = |socket: &mut TcpStream| socket.write_all(&[*byte]).is_ok();
            // One at a time, until the door has enough of it.
            if !slow[10..].iter_mut().all(told) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it waits for ever");
            thread::sleep(Duration::from_millis(100));
        }
        slow.iter_mut().for_each(is_closed);
        is_closed(&mut late);
        is_closed(&mut plain);
        service.until_reason("turned_away", &["handshake took more than 10 s"]);
    });
}

/// What opens a port and closes it again is no event.
#[test]
fn a_port_scan() {
    beside(&[], LITTLE, |_, service, _| {
        for number in 0..1000 {
            let socket = connect(service.address());
            if number % 2 == 0 {
                // Closed with a reset.
                socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        let mut last = connect(service.address());
        last.write_all(b"last\n").unwrap();
        is_closed(&mut last);
        service.until("turned_away", |_| true);
        let told = service.reasons("turned_away");
        assert_eq!(told.len(), 1, "{}", told[0]);
    });
}

#[test]
fn other_protocols() {
    beside(&[], LITTLE, |house, service, _| {
        let words: [(&[u8], &str); 4] = [
            (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak TLS 1.3"),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it does not speak TLS 1.3"),
            (&[0xff; 4096], "it does not speak TLS 1.3"),
            (b"vnc, or whatever it may be\n", "the peer does not speak the vmferry protocol"),
        ];
        for (number, (said, why)) in words.into_iter().enumerate() {
            let mut socket = connect(service.address());
            socket.write_all(said).unwrap();
            is_closed(&mut socket);
            let line = service.until("turned_away", |_| service.said("turned_away").len() > number);
            let told = &service.reasons("turned_away")[number];
            assert!(told.contains(why), "{line}: {told}");
        }
        for (words, why) in [
            (&["-tls1_2"][..], "SupportedVersions"),
            (&["-tls1_3", "-alpn", "http/1.1"], "any known protocol"),
        ] {
            let before = service.said("turned_away").len();
            let mut openssl = Command::new("openssl");
            openssl.args(["s_client", "-connect", &service.name()]).args(words);
            let said = openssl.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains("alert"), "it is told that this is not possible: {said}");
            service.until("turned_away", |_| service.said("turned_away").len() > before);
            let told = &service.reasons("turned_away")[before];
            assert!(told.contains(why), "{words:?}: {told}");
        }
        // With a key that is known, and everything else as it should be.
        let key = identity(&house.path("honest"));
        is_refused(&mut secure_for(service.address(), &key, b"http/1.1"));
        service.until_reason("turned_away", &["any known protocol"]);
    });
}
