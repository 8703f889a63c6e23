//! As many connections as asked for, each a flow of its own, and disks without the page cache.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;
mod watch;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use ferry::Ferry;
use scene::{Attempt, hurry, slow_link};
use testbed::images;
use testbed::net::{Host, Link, LinkConfig};
use watch::{Mark, eventually, tool};

const MIB: u64 = 1 << 20;

/// Source ports of the established connections to `port` of host b, as `host` sees them.
fn source_ports(host: &Host, side: &str, port: u16) -> BTreeSet<u16> {
    let filter = format!("{side} = :{port}");
    let shown = tool(host.command("ss").args(["-tnH", "state", "established", &filter]));
    let column = if side == "dport" { 2 } else { 3 };
    let address = |line: &str| line.split_whitespace().nth(column).unwrap().to_owned();
    shown.lines().map(|line| address(line).rsplit_once(':').unwrap().1.parse().unwrap()).collect()
}

/// Holds a send with `streams` lanes in flight and looks at its connections from both hosts.
fn has_exactly(streams: usize) {
    let link = slow_link();
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    // More chunks than the lanes hold at once: a lane that finds no work left ends.
    images::random(&image, (16 + streams as u64) * MIB, streams as u64).unwrap();
    let words = ["--log-interval", "0.1", "--chunk", "64K", "--streams", &streams.to_string()];
    let ferry = Ferry::over(&link).args(words).arg(&image);
    let mut attempt = Attempt::start(ferry.command(to.path()));
    let started = attempt.until(|event| event["event"] == "started");
    let peer: SocketAddr = started["peer"].as_str().unwrap().parse().unwrap();
    assert_eq!(peer.ip(), link.b().address());
    attempt.until_copying();

    let ports = source_ports(link.a(), "dport", peer.port());
    assert_eq!(ports.len(), streams + 1, "data and control: {ports:?}");
    for _ in 0..5 {
        assert_eq!(source_ports(link.a(), "dport", peer.port()), ports, "none comes or goes");
        assert_eq!(source_ports(link.b(), "sport", peer.port()), ports, "the receiver sees the same");
        sleep(Duration::from_millis(50));
    }
    if streams >= 4 {
        // One of them is control; even without it both parities are left.
        let odd = ports.iter().filter(|port| **port % 2 == 1).count();
        assert!(odd >= 2 && ports.len() - odd >= 2, "{ports:?}");
    }
    hurry(&link);
    assert_eq!(attempt.wait().done()["lanes"], streams);
    images::equal(&image, &to.path().join("disk.img")).unwrap();
    eventually("all connections are closed", || {
        source_ports(link.a(), "dport", peer.port()).is_empty().then_some(())
    });
}

#[test]
fn one_stream() {
    has_exactly(1);
}

#[test]
fn two_streams() {
    has_exactly(2);
}

#[test]
fn four_streams() {
    has_exactly(4);
}

#[test]
fn sixteen_streams() {
    has_exactly(16);
}

#[test]
fn sixty_four_streams() {
    has_exactly(64);
}

/// The system calls that strace wrote down, all threads together.
fn calls(folder: &Path, prefix: &str) -> Vec<String> {
    let logs = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let logs = logs.filter(|log| log.file_name().to_str().unwrap().starts_with(prefix));
    let lines = |log: fs::DirEntry| fs::read_to_string(log.path()).unwrap();
    logs.flat_map(|log| lines(log).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// True for a call like `name(… words …) = N`, N not an error.
fn succeeded(line: &str, name: &str, words: &[&str]) -> bool {
    let result = line.rsplit_once(" = ").map_or("-1", |(_, result)| result);
    line.starts_with(&format!("{name}("))
        && !result.starts_with(['-', '?'])
        && words.iter().all(|w| line.contains(w))
}

#[test]
fn both_ends_use_io_uring_and_open_with_o_direct() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let (place, logs) = (ferry::folder(), ferry::folder());
    let image = place.path().join("disk.img");
    images::random(&image, 32 * MIB, 1).unwrap();
    // One log per thread (-ff), so that no call is cut in two by another one.
    let strace = |prefix: &str| {
        let prefix = logs.path().join(prefix).into_os_string().into_string().unwrap();
        let trace = "trace=io_uring_setup,io_uring_enter,openat,openat2,pread64,preadv,pwrite64,pwritev";
        ["strace", "-ff", "-qq", "-y", "-e", trace, "-o", &prefix].map(str::to_owned)
    };
    // Not what the sender starts (-b), since a process has one tracer. -D: the receiver is the
    // child, so that the shell ends when it detaches.
    let mark = Mark::new();
    let remote = mark.on(&format!("{} -D {}", strace("receiver").join(" "), ferry::vmferry()));
    let sender = strace("sender").into_iter().chain(["-b", "execve"].map(str::to_owned));
    let ferry = Ferry::over(&link).wrap(sender).remote_path(remote).arg(&image);
    let done = ferry.send(place.path().join("copy.img")).done();
    images::equal(&image, &place.path().join("copy.img")).unwrap();
    assert_eq!(done["engine"], "uring");
    eventually("the receiver and its tracer end", || mark.bearers().is_empty().then_some(()));

    for (end, file) in [("sender", "disk.img"), ("receiver", "copy.img")] {
        let calls = calls(logs.path(), end);
        let count = |name, words: &[&str]| calls.iter().filter(|line| succeeded(line, name, words)).count();
        assert!(count("io_uring_setup", &[]) > 0, "{end} has no ring: {calls:#?}");
        assert!(count("io_uring_enter", &[]) > 0, "{end} does not use its ring");
        assert!(
            count("openat", &[file, "O_DIRECT"]) + count("openat2", &[file, "O_DIRECT"]) > 0,
            "{end}: {calls:#?}"
        );
        let plain = ["pread64", "preadv", "pwrite64", "pwritev"].map(|name| count(name, &[file]));
        assert_eq!(plain, [0; 4], "{end} goes around its ring");
    }
}

/// Bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    tool(Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path)).trim().parse().unwrap()
}

#[test]
fn neither_end_fills_the_page_cache() {
    let place = ferry::folder();
    let (image, target, size) = (place.path().join("disk.img"), place.path().join("copy.img"), 128 * MIB);
    images::random(&image, size, 2).unwrap();
    assert!(cached(&image) > size / 2, "a file just written is in the cache, or this test sees nothing");
    let file = image.display();
    tool(Command::new("dd").args([
        &format!("of={file}"),
        "oflag=nocache",
        "conv=notrunc,fdatasync",
        "count=0",
        "status=none",
    ]));
    assert!(cached(&image) < size / 20);

    Ferry::local().arg(&image).send(&target).done();
    for path in [&image, &target] {
        let cached = cached(path);
        assert!(cached < size / 20, "{} has {cached} of {size} bytes in the cache", path.display());
    }
    images::equal(&image, &target).unwrap();
}
