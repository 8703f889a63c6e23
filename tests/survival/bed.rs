//! A copy in its middle, over connections that can be told apart.

use serde_json::Value;
use testbed::images;
use testbed::net::Link;

use crate::ferry::{Ferry, Sent};
use crate::scene::{Attempt, Scene, slow_link};
use crate::watch::tool;

pub const MIB: u64 = 1 << 20;
/// The receiver's.
pub const PORT: u16 = 7000;
pub const STREAMS: usize = 8;
/// What may have been on its way on one connection, bytes: what the kernels of both ends hold (tcp_wmem
/// and tcp_rmem, 4 and 6 MiB at most), and a chunk or two.
pub const IN_FLIGHT: u64 = 12 * MIB;

pub struct Bed {
    pub link: Link,
    pub scene: Scene,
    pub attempt: Attempt,
}

/// How the tests send: what falls silent is noticed soon.
pub fn ferry(scene: &Scene, link: &Link, transport: &str, patience: &str) -> Ferry {
    let ferry = scene.over(link).args(["--log-interval", "0.1", "--peer-timeout", "3", "--streams", "8"]);
    ferry.args(["--port", "7000", "--transport", transport, "--patience", patience])
}

/// A copy in its middle, on a link that is slow enough for it to stay there; with zeros in between.
pub fn copying(transport: &str, patience: &str) -> Bed {
    let scene = Scene::with(|path| {
        images::random(path, 48 * MIB, 1).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(64 * MIB).unwrap();
        for zeros in (5..40).step_by(10) {
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; MIB as usize], zeros * MIB).unwrap();
        }
    });
    let link = slow_link();
    let mut attempt = scene.start(&ferry(&scene, &link, transport, patience));
    attempt.until_copying();
    Bed { link, scene, attempt }
}

impl Bed {
    /// Ports of the sender's connections, the oldest first: control, then data lanes in the order of their
    /// ids.
    pub fn ports(&self) -> Vec<u16> {
        let words = ["-Htn", "state", "established", "dport", "=", ":7000"];
        let shown = tool(self.link.a().command("ss").args(words));
        let port = |line: &str| line.split_whitespace().nth(2)?.rsplit(':').next()?.parse().ok();
        let mut ports: Vec<u16> = shown.lines().filter_map(port).collect();
        ports.sort_unstable();
        ports
    }

    /// Waits for the event of a connection: 0 is control.
    pub fn until(&mut self, event: &str, connection: impl Fn(u64) -> bool) {
        let wanted = |e: &Value| e["event"] == event && e["connection"].as_u64().is_some_and(&connection);
        self.attempt.until(wanted);
    }

    /// The job ends well, and the copy is the image; `lost`: data connections that broke.
    pub fn survives(self, lost: u64) -> Sent {
        let Bed { link, scene, attempt } = self;
        crate::scene::hurry(&link);
        let sent = attempt.wait();
        let done = sent.done();
        scene.arrived();
        let resent = done["resent_bytes"].as_u64().unwrap();
        assert!(resent <= lost * IN_FLIGHT, "{resent} bytes were sent again");
        sent
    }
}
