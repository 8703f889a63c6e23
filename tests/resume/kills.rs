//! `kill -9` of either end at points that a seed chooses, over every transport: the next attempt's
//! copy is equal, and little is sent twice.
//!
//! `VMFERRY_TEST_POINTS=50` for more points, `VMFERRY_TEST_SEED` for others.

use testbed::images::content::Numbers;
use testbed::net::{Link, LinkConfig, Side};

use super::{MIB, number, until_done};
use crate::scene::{Scene, signal};

const SIZE: u64 = 2048 * MIB;
const LANES: u64 = 8;
const WINDOW: u64 = 32 * MIB;
/// What a lane may have under way: two chunks that are not sent, what its sockets hold at both ends
/// (at most 6 MiB, tcp_rmem and tcp_wmem), one that is being received and those being written.
const IN_FLIGHT: u64 = LANES * (2 + 6 + 6 + 1) * MIB + 16 * MIB;

/// A number out of the environment.
pub fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

fn kills(transport: &str) {
    let link = Link::up(LinkConfig::default()).unwrap();
    let scene = Scene::new(SIZE);
    let seed = setting("VMFERRY_TEST_SEED", 1);
    let mut dice = Numbers::new(seed);
    for point in 0..setting("VMFERRY_TEST_POINTS", 5) {
        let options = ["--streams", "8", "--sync-window", "32M", "--transport", transport];
        let ferry = || scene.over(&link).args(options);
        let at = dice.below(SIZE * 7 / 10);
        let before = link.sent_bytes(0, Side::A).unwrap();
        let mut attempt = scene.start(&ferry().args(["--log-interval", "0.1", "--limit", "800MiB/s"]));
        until_done(&mut attempt, at);
        let receiver = dice.below(2) == 0;
        if receiver {
            signal(scene.receiver(), "KILL");
        } else {
            attempt.signal("KILL");
        }
        attempt.wait();
        let done = scene.send(&ferry()).done();
        scene.arrived();
        let sent = link.sent_bytes(0, Side::A).unwrap() - before;
        // Headers, TLS, TCP and heartbeats: under 1 %.
        let again = sent.saturating_sub(SIZE + SIZE / 100);
        let shown = again / MIB;
        assert!(
            again <= WINDOW + IN_FLIGHT,
            "seed {seed}, point {point} ({at}, receiver: {receiver}): {shown} MiB were sent twice; {done}"
        );
        assert!(at < 256 * MIB || number(&done, "resumed_bytes") > 0, "{done}");
        std::fs::remove_file(scene.there.join("disk.img")).unwrap();
    }
}

#[test]
fn killed_anywhere_over_tls() {
    kills("tls");
}

#[test]
fn killed_anywhere_over_tcp() {
    kills("tcp");
}
