//! Memory has a bound, whatever the size of an image, and a budget too small is refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;
mod watch;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use ferry::{Ferry, Sent};
use scene::Attempt;
use testbed::images;
use watch::{Mark, eventually};

const MIB: u64 = 1 << 20;
/// At the default settings, on each end.
const USUAL: u64 = 160 * MIB;
/// With 64 connections, on each end.
const MANY: u64 = 400 * MIB;

/// The most memory that a process had at once until now, in bytes; 0 when it is gone.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        // "VmHWM:     1234 kB"; huge pages of the reserved pool are not part of it.
        line.map_or(0, |rest| rest.trim().trim_end_matches(" kB").parse().unwrap())
    };
    (field("VmHWM:") + field("HugetlbPages:")) << 10
}

/// Runs a send to its end and returns the peaks of the sender and of the receiver.
#[track_caller]
fn watch(ferry: Ferry, to: &Path) -> (Sent, [u64; 2]) {
    let mark = Mark::new();
    let attempt = Attempt::start(ferry.remote_path(mark.on(ferry::vmferry())).command(to));
    let mut peaks = [0, 0];
    let mut receivers = Vec::new();
    // A sender that has ended, though not yet been waited for, has no memory.
    while peak(attempt.pid()) > 0 {
        // The one that starts, and the one that it leaves behind when it detaches.
        if receivers.iter().all(|pid| peak(*pid) == 0) {
            receivers = mark.receivers();
        }
        peaks[0] = peak(attempt.pid()).max(peaks[0]);
        peaks[1] = receivers.iter().map(|pid| peak(*pid)).fold(peaks[1], u64::max);
        sleep(Duration::from_millis(5));
    }
    let sent = attempt.wait();
    eventually("the receiver ends", || mark.receivers().is_empty().then_some(()));
    (sent, peaks)
}

/// Sends `image` with `words` and checks both peaks.
#[track_caller]
fn stays_below(limit: u64, image: &Path, words: &[&str]) {
    let place = ferry::folder();
    let (sent, peaks) = watch(Ferry::local().args(words).arg(image), place.path());
    sent.done();
    for (end, most) in ["sender", "receiver"].into_iter().zip(peaks) {
        assert!(most <= limit, "{end} had {most} bytes, allowed are {limit}");
        // 20 buffers of 1 MiB are touched before anything is sent.
        assert!(most > 20 * MIB, "{end} was seen with only {most} bytes: looked at the wrong process");
    }
}

#[test]
fn of_a_dense_image() {
    let place = ferry::folder();
    let image = place.path().join("dense.img");
    images::random(&image, 1 << 30, 1).unwrap();
    stays_below(USUAL, &image, &[]);
    stays_below(MANY, &image, &["--streams", "64"]);
}

#[test]
fn of_a_terabyte_of_hole() {
    let place = ferry::folder();
    let image = place.path().join("sparse.img");
    images::sparse(&image, 1 << 40, 64 * MIB, 2).unwrap();
    stays_below(USUAL, &image, &[]);
    stays_below(MANY, &image, &["--streams", "64"]);
}

/// An image of many terabytes has millions of chunks: nothing may be kept of one that is written.
#[test]
fn does_not_grow_with_the_number_of_chunks() {
    let place = ferry::folder();
    let image = place.path().join("dense.img");
    let peaks_at = |mib: u64| {
        images::random(&image, mib * MIB, 5).unwrap();
        let to = ferry::folder();
        let (sent, peaks) = watch(Ferry::local().args(["--chunk", "64K"]).arg(&image), to.path());
        sent.done();
        peaks
    };
    // 24 times as many chunks; a hundred bytes of each would be 1.5 MiB.
    let (few, many) = (peaks_at(42), peaks_at(1008));
    for (end, (few, many)) in ["sender", "receiver"].into_iter().zip(few.into_iter().zip(many)) {
        assert!(many <= few + 4 * MIB, "{end} had {few} bytes with few chunks and {many} with many");
    }
}

/// Buffers for every lane must fit: what does not is told before anything is started.
#[test]
fn too_small_a_budget_is_refused() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    images::random(&image, MIB, 3).unwrap();
    for words in [
        &["--memory", "1M"][..],
        &["--memory", "5M"],
        &["--memory", "64M", "--streams", "64"],
        &["--memory", "16M", "--chunk", "4M"],
        &["--memory", "4095"],
    ] {
        let mark = Mark::new();
        let ferry = Ferry::local().args(words).arg(&image).remote_path(mark.on(ferry::vmferry()));
        let sent = ferry.send(to.path());
        let reason = sent.failed(2);
        assert!(reason.contains("--memory") && reason.contains("--streams"), "{reason}");
        assert_eq!(mark.receivers(), [0; 0], "{words:?}: a receiver waits for nobody");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }
}

/// The least budget that is not refused carries a job to its end.
#[test]
fn the_least_budget_is_enough() {
    let from = ferry::folder();
    let image = from.path().join("disk.img");
    images::random(&image, 64 * MIB, 4).unwrap();
    for words in [["--memory", "6M", "--streams", "4"], ["--memory", "3M", "--streams", "1"]] {
        let to = ferry::folder();
        Ferry::local().args(words).arg(&image).send(to.path()).done();
        images::equal(&image, &to.path().join("disk.img")).unwrap();
    }
}
