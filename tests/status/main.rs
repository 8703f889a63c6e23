//! What interrupted jobs leave is listed as it is, and removed on request; nothing else ever is.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod deltas;
mod foreign;
mod interruptions;
mod running;
mod words;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferry::{Sent, vmferry};
use scene::{Attempt, Scene, signal};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Slow enough to be interrupted; what is done is durable soon.
const SLOW: [&str; 6] = ["--log-interval", "0.1", "--sync-window", "8M", "--limit", "100MiB/s"];

fn run<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Sent {
    let mut command = Command::new(vmferry());
    command.args(words);
    Attempt::start(command).wait()
}

/// The copies that `status` lists in a folder; the last object is checked.
#[track_caller]
fn status(folder: &Path) -> Vec<Value> {
    let sent = run([OsStr::new("status"), "--json".as_ref(), folder.as_ref()]);
    let done = sent.done();
    let mut events = sent.events();
    events.pop();
    assert_eq!(done["copies"], events.len());
    assert!(events.iter().all(|e| e["event"] == "copy"), "{events:?}");
    let disk: u64 = events.iter().map(|e| number(e, "disk_bytes")).sum();
    assert_eq!(number(&done, "disk_bytes"), disk);
    events
}

/// The one copy that is there.
#[track_caller]
fn only(folder: &Path) -> Value {
    let found = status(folder);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

fn drop(path: &Path, more: &[&str]) -> Sent {
    run([OsStr::new("drop"), "--json".as_ref(), path.as_ref()].into_iter().chain(more.iter().map(OsStr::new)))
}

/// Drops it, by any of its names; what was freed, bytes.
#[track_caller]
fn dropped(path: &Path, kind: &str, more: &[&str]) -> u64 {
    let sent = drop(path, more);
    let done = sent.done();
    let events = sent.events();
    assert_eq!((&events[0]["event"], &events[0]["kind"]), (&"dropped".into(), &kind.into()));
    assert_eq!((&done["dropped"], &done["freed_bytes"]), (&1.into(), &events[0]["freed_bytes"]));
    number(&done, "freed_bytes")
}

fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap_or_else(|| panic!("{field}: {event}"))
}

fn image(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img")
}

fn part(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img.vmferry-part")
}

fn ledger(scene: &Scene) -> PathBuf {
    scene.there.join("disk.img.vmferry-ledger")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.filter(|name| name != "lost+found").collect();
    names.sort();
    names
}

/// Waits until so much is done.
fn until_done(attempt: &mut Attempt, bytes: u64) {
    attempt.until(|e| e["event"] == "progress" && e["done_bytes"].as_u64() >= Some(bytes));
}

/// An attempt whose receiver is killed when `bytes` are done.
fn killed_at(scene: &Scene, bytes: u64) {
    let mut attempt = scene.start(&scene.local().args(SLOW));
    until_done(&mut attempt, bytes);
    signal(scene.receiver(), "KILL");
    attempt.wait().failed(1);
    assert!(part(scene).exists() && ledger(scene).exists(), "the test is too late");
}
