//! A disk that takes longer to flush than silence means death.

use std::time::Duration;

use testbed::faults::Faults;
use testbed::net::{Link, LinkConfig};

use crate::bed::{MIB, ferry};
use crate::ferry::folder;
use crate::scene::{Scene, fault_fs};
use crate::watch::eventually;

/// Twice `--peer-timeout 3` and more.
const SLOW: Duration = Duration::from_secs(8);

fn flushed(transport: &str) {
    let place = folder();
    let target = fault_fs(place.path(), Faults { slow_fsyncs: SLOW, ..Faults::default() });
    let scene = Scene::new(96 * MIB).to(target.path());
    let link = Link::up(LinkConfig::default()).unwrap();
    let ferry = ferry(&scene, &link, transport, "60").args(["--sync-window", "4M"]);
    let attempt = scene.start(&ferry);
    eventually("it is flushed", || (target.counts().fsyncs > 0).then_some(()));
    target.set(Faults::default());
    let sent = attempt.wait();
    assert_eq!(sent.done()["resent_bytes"], 0);
    assert!(!sent.events().iter().any(|e| e["event"] == "lost"), "{}", sent.stdout);
    scene.arrived();
}

#[test]
fn a_long_flush_breaks_no_connection() {
    flushed("tls");
}

#[test]
fn a_long_flush_breaks_no_connection_on_plain_tcp() {
    flushed("tcp");
}
