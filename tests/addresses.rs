//! Ways to reach the destination: IPv4, IPv6, link-local addresses with a scope, names.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;
mod watch;

use scene::names::Names;
use scene::{Scene, says};
use testbed::net::{Host, Link, LinkConfig};
use watch::{eventually, tool};

const MIB: u64 = 1 << 20;

/// Sends, and returns where the control connection went.
fn peer(scene: &Scene, link: &Link, words: &[&str]) -> String {
    let sent = scene.send(&scene.over(link).arg("--force").args(words.iter().copied()));
    sent.done();
    scene.arrived();
    sent.events()[0]["peer"].as_str().unwrap().to_owned()
}

/// The link-local address of a host and the name of its interface, once the kernel has found that
/// nobody else has it.
fn link_local(host: &Host) -> (String, String) {
    eventually("a link-local address", || {
        let shown =
            tool(host.command("ip").args(["-6", "-o", "addr", "show", "scope", "link", "-tentative"]));
        let words: Vec<&str> = shown.split_whitespace().collect();
        let at = words.iter().position(|w| *w == "inet6")?;
        Some((words[at + 1].split('/').next()?.to_owned(), words[1].to_owned()))
    })
}

#[test]
fn link_local_addresses_need_and_take_a_scope() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let scene = Scene::new(MIB);
    let (there, _) = link_local(link.b());
    let (_, out_of) = link_local(link.a());
    for via in [format!("{there}%{out_of}"), format!("[{there}%{out_of}]")] {
        let peer = peer(&scene, &link, &["--via", &via, "--streams", "2"]);
        assert!(peer.starts_with(&format!("[{there}%")), "{peer}");
    }
}

#[test]
fn one_family_only() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let scene = Scene::new(MIB);
    assert!(peer(&scene, &link, &["-4"]).starts_with("10.77.0.2:"));
    assert!(peer(&scene, &link, &["-6"]).starts_with("[fd77::2]:"));
    assert!(peer(&scene, &link, &["--via", "fd77::2"]).starts_with("[fd77::2]:"));
    assert!(peer(&scene, &link, &["--via", "10.77.0.2", "--via", "fd77::2"]).starts_with("10.77.0.2:"));
    let none = scene.send(&scene.over(&link).args(["-6", "--via", "10.77.0.2", "--force"])).failed(3);
    says(&none, &["10.77.0.2", "IPv6", "--via"]);
}

/// A name with addresses of both families: either is chosen by the option.
#[test]
fn names_stand_for_addresses() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _names = Names::of(link.a(), "10.77.0.2 twofold\nfd77::2 twofold\n", "");
    let scene = Scene::new(MIB);
    assert!(peer(&scene, &link, &["--via", "twofold", "-4"]).starts_with("10.77.0.2:"));
    assert!(peer(&scene, &link, &["--via", "twofold", "-6"]).starts_with("[fd77::2]:"));
    peer(&scene, &link, &["--via", "twofold"]);
}

#[test]
fn a_name_that_nobody_knows_is_refused_before_anything_starts() {
    let scene = Scene::new(MIB);
    let reason = scene.send(&scene.local().args(["--via", "no.such.host.invalid"])).failed(3);
    says(&reason, &["no.such.host.invalid", "--via"]);
    assert!(scene.receivers().is_empty());
    scene.untouched();
}
