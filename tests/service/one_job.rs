//! The receiver of one job has the same door.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lanes::identity::Identity;
use proto::control::SessionId;
use proto::join::Secret;

use crate::attack::{client_hello, connect, is_closed, is_refused, join, secure};
use crate::house::{MIB, descriptors, peak};
use crate::scene::{Scene, hurry, slow_link};
use crate::watch::eventually;

/// Strangers of every kind on the destination's own host, a thousand of most, while the job goes on
/// over a slow link.
fn beside(most: u64, attack: impl FnOnce(SocketAddr) + Send) {
    let link = slow_link();
    let scene = Scene::new(96 * MIB);
    let at = SocketAddr::new(link.b().address(), 7000);
    let mut attempt = scene.start(&scene.over(&link).args(["--port", "7000", "--log-interval", "0.1"]));
    attempt.until_copying();
    let receiver = scene.receiver();
    let (open, before) = (descriptors(receiver), peak(receiver));
    link.b().inside(|| attack(at)).unwrap();
    eventually("descriptors are given back", || (descriptors(receiver) <= open).then_some(()));
    let grown = peak(receiver) - before;
    assert!(grown < most, "{} MiB more", grown / MIB);
    hurry(&link);
    attempt.wait().done();
    scene.arrived();
}

#[test]
fn a_thousand_idle_connections() {
    beside(16 * MIB, |at| {
        let mut idle: Vec<TcpStream> = (0..1000).map(|_| connect(at)).collect();
        idle.iter_mut().for_each(is_closed);
    });
}

#[test]
fn a_thousand_that_begin_a_handshake() {
    beside(100 * MIB, |at| {
        let hello = client_hello(at, &Identity::one_time().unwrap());
        let half = |_| {
            let mut socket = connect(at);
            socket.write_all(&hello[..hello.len() / 2]).unwrap();
            socket
        };
        let mut halves: Vec<TcpStream> = (0..1000).map(half).collect();
        halves.iter_mut().for_each(is_closed);
    });
}

#[test]
fn scans_strangers_and_other_protocols() {
    beside(16 * MIB, |at| {
        let stranger = Identity::one_time().unwrap();
        for number in 0..300 {
            let mut socket = connect(at);
            match number % 6 {
                0 => drop(socket),
                1 => socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap(),
                2 => {
                    socket.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
                    is_closed(&mut socket);
                }
                3 => {
                    socket.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                    is_closed(&mut socket);
                }
                4 => {
                    socket.write_all(b"vmferry\nand nothing that makes sense").unwrap();
                    is_closed(&mut socket);
                }
                _ => is_refused(&mut secure(at, &stranger)),
            }
        }
        // A join in the clear, where TLS was agreed upon, of a session that is not there.
        let mut plain = connect(at);
        plain.write_all(&proto::version::Hello::ours(proto::version::Role::Lane).encode()).unwrap();
        plain.write_all(&[0; proto::join::REQUEST_LEN]).unwrap();
        is_closed(&mut plain);
        assert!(join(secure(at, &stranger), SessionId([1; 16]), 1, &Secret([2; 32])).is_none());
    });
}
