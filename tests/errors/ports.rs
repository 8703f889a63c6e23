//! The data port cannot be reached: refused, rejected, or silently dropped.

use std::thread;

use testbed::net::{Link, LinkConfig};

use crate::scene::{LONELY, Scene, says};

/// What host b does with connections to `port`.
fn firewall(link: &Link, verdict: &str, port: u16) {
    let rules = format!(
        "add table inet t; add chain inet t in {{ type filter hook input priority 0; }}; \
         add rule inet t in tcp dport {port} {verdict}"
    );
    assert!(link.b().command("nft").arg(rules).status().unwrap().success());
}

/// Sends into a firewall; returns once the receiver has given up, too.
fn into(verdict: &str) -> String {
    let link = Link::up(LinkConfig::default()).unwrap();
    firewall(&link, verdict, 7000);
    let scene = Scene::new(1 << 20);
    let reason = scene.send(&scene.over(&link).args(["--port", "7000"])).failed(3);
    scene.untouched_but_for(LONELY);
    reason
}

/// Side by side, since each receiver waits half a minute for its sender.
#[test]
fn firewalls_are_told_apart_and_the_rule_that_opens_them_is_named() {
    let open = ["open TCP 7000", "tcp dport 7000 accept", "--port", "--via"];
    let silent = thread::spawn(|| into("drop"));
    let reset = thread::spawn(|| into("reject with tcp reset"));
    let unreachable = thread::spawn(|| into("reject with icmpx type port-unreachable"));
    // What firewalld and many distributions' rules answer.
    let prohibited = thread::spawn(|| into("reject with icmpx type admin-prohibited"));
    let join = |handle: thread::JoinHandle<String>| handle.join().unwrap();
    let reason = join(silent);
    says(&reason, &["no answer from 10.77.0.2:7000 (tcp) within 10 s"]);
    says(&reason, &open);
    for refused in [join(reset), join(unreachable)] {
        says(&refused, &["connection refused by 10.77.0.2:7000 (tcp)"]);
        says(&refused, &open);
    }
    let reason = join(prohibited);
    says(&reason, &["10.77.0.2:7000", "No route to host"]);
    says(&reason, &open);
}

#[test]
fn no_free_port_at_the_destination_is_the_receivers_own_reason() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _taken = link.b().inside(|| std::net::TcpListener::bind("[::]:7000").unwrap()).unwrap();
    let scene = Scene::new(1 << 20);
    let reason = scene.send(&scene.over(&link).args(["--port", "7000"])).failed(3);
    says(&reason, &["on the destination", "cannot listen on port 7000", "in use"]);
    scene.untouched();
    scene.send(&scene.over(&link).args(["--port", "7000-7001"])).done();
    scene.arrived();
}

/// Nothing listens where `--via` leads.
#[test]
fn an_address_that_ends_elsewhere_is_named() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let scene = Scene::new(1 << 20);
    let here = link.a().address().to_string();
    let reason = scene.send(&scene.over(&link).args(["--via", &here, "--port", "7000"])).failed(3);
    says(&reason, &["connection refused by 10.77.0.1:7000"]);
    scene.dismiss();
    scene.untouched();
}
