//! Links: shaped, cut, mended, and gone when dropped.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{carry, connect};
use testbed::net::{Link, LinkConfig, Rate, Shape, Side};

const MIB: usize = 1 << 20;

fn shaped() -> Link {
    let config = LinkConfig { shape: Shape::mbit(4950, 3700), ..LinkConfig::default() };
    Link::up(config).expect("a link")
}

fn plain() -> Link {
    Link::up(LinkConfig::default()).expect("a link")
}

/// True when bytes arrive within `patience`; an error of the connection fails the test.
fn arrives(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).expect("a timeout");
    match stream.read(&mut [0; 64]) {
        Ok(length) => {
            assert!(length > 0, "the connection was closed");
            true
        }
        Err(error) => {
            let kinds = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
            assert!(kinds.contains(&error.kind()), "{error}");
            false
        }
    }
}

#[test]
fn tcp_flows_land_in_classes_of_their_own() {
    let link = shaped();
    let data = vec![7; 2 * MIB];
    for address in [link.b().address(), link.b().address6()] {
        for _ in 0..8 {
            let (mut near, mut far) = connect(&link, address);
            carry(&mut near, &mut far, &data);
        }
    }
    let classes = link.class_bytes(0, Side::A).expect("counters");
    let full = classes.values().filter(|bytes| **bytes > MIB as u64).count();
    assert!(full >= 8, "16 flows in {full} classes: {classes:?}");
}

#[test]
fn udp_flows_land_in_classes_of_their_own() {
    let link = shaped();
    for port in 40001..40009 {
        let socket = link
            .a()
            .inside(|| UdpSocket::bind((link.a().address(), port)))
            .expect("entered a")
            .expect("binds");
        for _ in 0..100 {
            socket.send_to(&[0; 1000], (link.b().address(), 9)).expect("sends");
        }
    }
    let classes = link.class_bytes(0, Side::A).expect("counters");
    let full = classes.values().filter(|bytes| **bytes > 100_000).count();
    assert_eq!(full, 8, "these 8 ports have no class in common: {classes:?}");
}

#[test]
fn shaping_can_be_changed_and_removed_while_up() {
    let link = shaped();
    let queues = || {
        let mut command = link.b().command("tc");
        command.args(["qdisc", "show", "dev", &link.device(0)]);
        let output = command.output().expect("runs tc");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(queues().contains("htb"), "{}", queues());
    let total = Shape { total: Some(Rate::mbit(100)), flow: None };
    link.shape(0, total).expect("shapes again");
    let (mut near, mut far) = connect(&link, link.b().address());
    carry(&mut near, &mut far, &[1; 1000]);
    assert_eq!(link.class_bytes(0, Side::A).expect("counters").len(), 1);
    link.shape(0, Shape::default()).expect("unshapes");
    assert!(!queues().contains("htb"), "{}", queues());
}

#[test]
fn a_cut_is_silent_and_a_mended_link_goes_on() {
    let link = plain();
    let (mut near, mut far) = connect(&link, link.b().address());
    carry(&mut near, &mut far, b"before");
    link.cut().expect("cuts");
    near.write_all(b"during").expect("the sender notices nothing");
    assert!(!arrives(&mut far, Duration::from_millis(300)));
    link.mend().expect("mends");
    assert!(arrives(&mut far, Duration::from_secs(10)));
}

#[test]
fn one_connection_is_cut_and_the_others_are_not() {
    let link = plain();
    let (mut cut, mut cut_far) = connect(&link, link.b().address());
    let (mut whole, mut whole_far) = connect(&link, link.b().address());
    let near = cut.local_addr().expect("an address").port();
    let far = cut.peer_addr().expect("an address").port();
    link.cut_flow(near, far).expect("cuts");
    cut.write_all(b"lost").expect("the sender notices nothing");
    cut_far.write_all(b"lost").expect("the sender notices nothing");
    carry(&mut whole, &mut whole_far, &vec![3; MIB]);
    assert!(!arrives(&mut cut_far, Duration::from_millis(300)));
    assert!(!arrives(&mut cut, Duration::from_millis(10)));
}

#[test]
fn one_connection_is_reset_and_the_others_are_not() {
    let link = plain();
    let (mut reset, mut reset_far) = connect(&link, link.b().address());
    let (mut whole, mut whole_far) = connect(&link, link.b().address());
    let near = reset.local_addr().expect("an address").port();
    let far = reset.peer_addr().expect("an address").port();
    link.reset_flow(near, far).expect("resets");
    assert!(reset.read(&mut [0]).is_err(), "here");
    assert!(reset_far.read(&mut [0]).is_err(), "there");
    carry(&mut whole, &mut whole_far, &vec![3; MIB]);
    assert!(link.reset_flow(near, far).is_err(), "it is gone already");
}

#[test]
fn a_black_hole_passes_small_packets_only() {
    let link = plain();
    link.lose_larger(1400).expect("a black hole");
    let (mut near, mut far) = connect(&link, link.b().address());
    carry(&mut near, &mut far, &[1; 1000]);
    near.write_all(&[2; 4 * 1448]).expect("sends");
    assert!(!arrives(&mut far, Duration::from_millis(400)));
    link.mend().expect("mends");
    assert!(arrives(&mut far, Duration::from_secs(10)));
}

#[test]
fn two_paths_are_cut_one_by_one() {
    let mut link = plain();
    let second = link.add_link(LinkConfig { mtu: Some(9000), ..LinkConfig::default() });
    let second = second.expect("a second path");
    assert_eq!(second, 1);
    let (mut first_near, _first_far) = connect(&link, link.b().address());
    let (mut near, mut far) = connect(&link, link.b().address_on(second));
    let data = vec![9; MIB];
    link.cut_path(0).expect("cuts");
    first_near.write_all(b"lost").expect("the sender notices nothing");
    assert_eq!(carry(&mut near, &mut far, &data), data);
    let attached = Link::attach(link.name()).expect("is up");
    assert_eq!(attached.paths(), 2);
}

#[test]
fn hosts_use_cubic_whatever_the_machine_uses() {
    let link = plain();
    for host in [link.a(), link.b()] {
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        let name = host.inside(|| std::fs::read_to_string(path)).expect("entered");
        assert_eq!(name.expect("is read").trim(), "cubic");
    }
}

#[test]
fn hosts_are_gone_after_drop_and_after_a_panic() {
    let exists = |name: &str| Path::new("/run/netns").join(name).exists();
    let link = plain();
    let names = [link.a().name().to_owned(), link.b().name().to_owned()];
    assert!(names.iter().all(|name| exists(name)));
    drop(link);
    assert!(!names.iter().any(|name| exists(name)));

    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let link = plain();
        sender.send(link.a().name().to_owned()).expect("is heard");
        panic!("on purpose");
    });
    let name = receiver.recv().expect("a name");
    assert!(thread.join().is_err());
    assert!(!exists(&name));
}

#[test]
fn a_delayed_link_carries_data_intact_and_takes_its_time() {
    let delay = Duration::from_millis(10);
    let config = LinkConfig { delay: Some(delay), ..LinkConfig::default() };
    let link = Link::up(config).expect("a link");
    let mut data = vec![0; 64 * MIB];
    testbed::images::content::fill(1, 0, &mut data);
    for address in [link.b().address(), link.b().address6()] {
        let (mut near, mut far) = connect(&link, address);
        assert!(carry(&mut near, &mut far, &data) == data, "data changed on the way");
        for _ in 0..5 {
            let start = Instant::now();
            carry(&mut near, &mut far, b"ping");
            carry(&mut far, &mut near, b"pong");
            assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
        }
    }
    let name = link.a().name().to_owned();
    drop(link);
    assert!(!Path::new("/run/netns").join(name).exists());
}
