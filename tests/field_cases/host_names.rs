//! J5: the destination's name means something else here, or nothing. The key that came through the
//! remote shell is believed, no name. (Families and scopes: `addresses`.)

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use testbed::net::{Host, Link, LinkConfig};

use crate::ferry::{Ferry, testbed};
use crate::scene::names::Names;
use crate::scene::{Scene, says};
use crate::watch::tool;

const MIB: u64 = 1 << 20;
/// An address that no host has a route to.
const UNROUTED: &str = "fd99::9";
const NO_SERVER: &str = "nameserver 127.0.0.1\n";

/// The receiver says first that it is reached at an address that nobody has.
fn misled(scene: &Scene, link: &Link) -> Ferry {
    let shell = format!("{} local-shell --netns {}", testbed().display(), link.b().name());
    let rsh = format!("env 'SSH_CONNECTION=fd99::1 1 {UNROUTED} 22' {shell}");
    scene.over(link).rsh(rsh).args(["--port", "7000", "--force"])
}

/// Somebody else at the same port of this host's own address, and the first bytes of what he hears.
fn foreigner(host: &Host, words: &'static [u8]) -> Arc<Mutex<Vec<[u8; 3]>>> {
    let heard = Arc::<Mutex<Vec<[u8; 3]>>>::default();
    let all = heard.clone();
    host.inside(move || {
        let listener = TcpListener::bind("127.0.1.1:7000").unwrap();
        thread::spawn(move || {
            let mut held = Vec::new();
            for mut socket in listener.incoming().flatten() {
                let mut first = [0; 3];
                if socket.write_all(words).and_then(|()| socket.read_exact(&mut first)).is_ok() {
                    all.lock().unwrap().push(first);
                }
                held.push(socket);
            }
        });
    })
    .unwrap();
    heard
}

#[test]
fn j5_a_name_that_means_this_host_itself() {
    // Nobody, somebody who says nothing, and another service.
    for words in [None, Some(&b""[..]), Some(b"SSH-2.0-OpenSSH_9.2\r\n")] {
        let link = Link::up(LinkConfig::default()).unwrap();
        let _names = Names::of(link.a(), "127.0.1.1 there\n", NO_SERVER);
        let heard = words.map(|words| foreigner(link.a(), words));
        let scene = Scene::new(MIB);
        let sent = scene.send(&misled(&scene, &link));
        sent.done();
        assert_eq!(sent.events()[0]["peer"], "10.77.0.2:7000");
        scene.arrived();
        if let Some(heard) = heard {
            let heard = heard.lock().unwrap();
            assert!(!heard.is_empty(), "he was asked");
            // A handshake record of TLS (RFC 8446, section 5.1).
            assert!(heard.iter().all(|first| first[..2] == [0x16, 3]), "{heard:?}");
        }
    }
}

#[test]
fn j5_a_name_that_means_nothing() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _names = Names::of(link.a(), "", NO_SERVER);
    let scene = Scene::new(MIB);
    scene.send(&misled(&scene, &link)).done();
    scene.arrived();
}

/// A resolver that waits for its servers would take longer than the receiver waits for the sender.
#[test]
fn j5_a_name_server_that_does_not_answer() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let drop = "add table inet t; add chain inet t in { type filter hook input priority 0; }; \
                add rule inet t in udp dport 53 drop";
    tool(link.b().command("nft").arg(drop));
    let _names = Names::of(link.a(), "", "nameserver 10.77.0.2\noptions timeout:20\n");
    let scene = Scene::new(MIB);
    scene.send(&misled(&scene, &link)).done();
    scene.arrived();
}

/// Bytes that arrived at a host by a path.
fn arrived_by(host: &Host, device: &str) -> u64 {
    let shown = tool(host.command("cat").arg("/proc/net/dev"));
    let line = shown.lines().find_map(|l| l.trim().strip_prefix(device)?.strip_prefix(':'));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Names with an address where nobody is: all connections find the other one, on every cable.
#[test]
fn j5_one_of_two_addresses_is_dead() {
    let mut link = Link::up(LinkConfig::default()).unwrap();
    link.add_link(LinkConfig::default()).unwrap();
    // Where there is a route the system does not know better than to try it first.
    tool(link.a().command("ip").args(["-6", "route", "add", "fd99::/64", "dev", "path0"]));
    let hosts = "fd99::9 one\n10.77.0.2 one\n10.77.1.9 two\n10.77.1.2 two\n";
    let _names = Names::of(link.a(), hosts, NO_SERVER);
    let scene = Scene::new(16 * MIB);
    for transport in ["tls", "tcp"] {
        let words = ["--force", "--port", "7000", "--transport", transport, "--via", "one", "--via", "two"];
        let sent = scene.send(&scene.over(&link).args(words));
        sent.done();
        assert_eq!(sent.events()[0]["peer"], "10.77.0.2:7000");
        scene.arrived();
    }
    for device in ["path0", "path1"] {
        let bytes = arrived_by(link.b(), device);
        assert!(bytes > 4 * MIB, "{device} carried {bytes} bytes");
    }
}

#[test]
fn j5_no_address_works_and_all_are_named() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _names = Names::of(link.a(), "127.0.1.1 there\n192.0.2.7 there\n", NO_SERVER);
    let reject = "add table inet t; add chain inet t in { type filter hook input priority 0; }; \
                  add rule inet t in tcp dport 7000 reject with tcp reset";
    tool(link.b().command("nft").arg(reject));
    let scene = Scene::new(MIB);
    let reason = scene.send(&misled(&scene, &link)).failed(3);
    says(&reason, &["cannot connect to [fd99::9]:7000: Network is unreachable"]);
    says(&reason, &["192.0.2.7", "10.77.0.2", "fd77::2", "--via"]);
    scene.dismiss();
    scene.untouched();
}
