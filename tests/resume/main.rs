//! Nothing durable is sent twice, and nothing that is not durable is taken for it.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../watch/mod.rs"]
mod watch;

mod devices;
mod doubts;
mod interruptions;
mod kills;
mod power;

use std::path::PathBuf;

use scene::{Attempt, Scene, signal};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn part(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img.vmferry-part")
}

fn ledger(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img.vmferry-ledger")
}

fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap()
}

/// Waits until so much is done.
fn until_done(attempt: &mut Attempt, bytes: u64) {
    attempt.until(|e| e["event"] == "progress" && e["done_bytes"].as_u64() >= Some(bytes));
}

/// An attempt whose receiver is killed when `bytes` are done. Its image is dense, and small windows
/// make what is done durable soon.
fn killed_at(scene: &Scene, bytes: u64, more: &[&str]) {
    let options = ["--log-interval", "0.1", "--sync-window", "8M", "--limit", "100MiB/s"];
    let mut attempt = scene.start(&scene.local().args(options).args(more));
    until_done(&mut attempt, bytes);
    signal(scene.receiver(), "KILL");
    attempt.wait().failed(1);
    assert!(part(scene).exists() && ledger(scene).exists(), "the test is too late");
}
