//! What a job says while it runs and at its end, to machines and to people.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferry::{Ferry, Sent};
use scene::slow_link;
use serde_json::Value;
use testbed::disk::{Caps, Fs, LoopDisk};
use testbed::images;

const MIB: u64 = 1 << 20;

fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap_or_else(|| panic!("{field} in {object}"))
}

/// Sends images over a slow link and checks all that is said on the way.
#[track_caller]
fn says_how_far_it_is(images: &[PathBuf]) {
    let to = ferry::folder();
    let total: u64 = images.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let sent = Ferry::over(&slow_link()).args(["--log-interval", "0.1"]).args(images).send(to.path());
    let (done, events) = (sent.done(), sent.events());
    assert!(events.iter().all(|event| event.is_object() && event["event"].is_string()), "{}", sent.stdout);
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!(events[0]["event"], "started");
    assert_eq!((named("started").len(), named("committed").len()), (1, images.len()));
    assert_eq!(named("done"), [&done]);

    let steps = named("progress");
    assert!(steps.len() >= 5, "a few seconds with a line each tenth: {}", sent.stdout);
    let between = |step: &&Value| (1..total).contains(&number(step, "done_bytes"));
    assert!(steps.iter().any(between), "no line on the way: {}", sent.stdout);
    for step in &steps {
        assert_eq!(number(step, "image_bytes"), total);
        assert!(number(step, "done_bytes") <= total, "{step}");
    }
    for pair in steps.windows(2) {
        for field in ["done_bytes", "wire_bytes"] {
            assert!(number(pair[0], field) <= number(pair[1], field), "{field} goes back: {pair:?}");
        }
        assert!(pair[0]["seconds"].as_f64() <= pair[1]["seconds"].as_f64(), "{pair:?}");
    }
    let (data, wire) = (number(&done, "data_bytes"), number(&done, "wire_bytes"));
    assert!(steps.iter().all(|step| number(step, "wire_bytes") <= wire));
    assert!(data <= total && data <= wire, "{done}");
    assert_eq!((number(&done, "images"), number(&done, "image_bytes")), (images.len() as u64, total));
}

#[test]
fn of_a_dense_image() {
    let from = ferry::folder();
    let image = from.path().join("disk.img");
    images::random(&image, 12 * MIB + 77, 1).unwrap();
    says_how_far_it_is(&[image]);
}

#[test]
fn of_a_sparse_image() {
    let from = ferry::folder();
    let image = from.path().join("disk.img");
    images::sparse(&image, 4 << 30, 12 * MIB, 2).unwrap();
    says_how_far_it_is(&[image]);
}

#[test]
fn of_several_images() {
    let from = ferry::folder();
    let images = ["a.img", "b.img", "c.img", "d.img"].map(|name| from.path().join(name));
    images::random(&images[0], 6 * MIB, 3).unwrap();
    images::sparse(&images[1], 300 * MIB, 4 * MIB, 4).unwrap();
    images::dirty(&images[2], 5 * MIB, 0).unwrap();
    images::random(&images[3], 3 * MIB + 1, 5).unwrap();
    says_how_far_it_is(&images);
}

#[test]
fn done_has_the_documented_fields() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    images::sparse(&image, 8 * MIB, 3 * MIB, 6).unwrap();
    let done = Ferry::local().args(["--streams", "3"]).arg(&image).send(to.path()).done();
    let fields: BTreeSet<&str> = done.as_object().unwrap().keys().map(String::as_str).collect();
    let documented = [
        "event",
        "images",
        "image_bytes",
        "data_bytes",
        "wire_bytes",
        "resent_bytes",
        "resumed_bytes",
        "seconds",
        "rate_bps",
        "lanes",
        "transport",
        "engine",
        "bottleneck",
        "digests",
    ];
    assert_eq!(fields, documented.into());
    assert_eq!((number(&done, "data_bytes"), number(&done, "resent_bytes")), (3 * MIB, 0));
    assert_eq!((number(&done, "lanes"), &done["transport"]), (3, &"tls".into()));
    let rate = 3.0 * MIB as f64 * 8.0 / done["seconds"].as_f64().unwrap();
    assert!((number(&done, "rate_bps") as f64 - rate).abs() <= 1.0 + rate / 1e6, "{done}");
    let digests: BTreeSet<&str> =
        done["digests"]["disk.img"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(digests, ["tree", "b3"].into());
}

/// The clock only shows that it was not faster: a machine under load may always be slower.
#[test]
fn a_limit_is_kept_by_all_lanes_together_and_named() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    images::random(&image, 16 * MIB, 7).unwrap();
    for streams in ["1", "8"] {
        let words = ["--limit", "80Mb/s", "--streams", streams, "--chunk", "256K", "--force"];
        let done = Ferry::local().args(words).arg(&image).send(to.path()).done();
        assert!(number(&done, "rate_bps") <= 84_000_000, "{done}");
        assert_eq!(done["bottleneck"], "limit");
        images::equal(&image, &to.path().join("disk.img")).unwrap();
    }
}

#[test]
fn a_slow_link_is_named() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    images::random(&image, 16 * MIB, 7).unwrap();
    let done = Ferry::over(&slow_link()).arg(&image).send(to.path()).done();
    assert_eq!(done["bottleneck"], "network");
}

/// A disk of its own that takes and gives little.
fn slow_disk(folder: &Path) -> LoopDisk {
    let mut disk = LoopDisk::new(folder, 256 * MIB, Fs::Ext4, 512).unwrap();
    disk.set_caps(Caps { write: Some(16 * MIB), read: Some(16 * MIB) }).unwrap();
    disk
}

/// The words that put a program into the group whose disk is slow.
fn capped(disk: &mut LoopDisk, program: &OsStr) -> Vec<OsString> {
    let command = disk.command_in_cap_group(program).unwrap();
    [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_owned).collect()
}

#[test]
fn a_slow_destination_disk_is_named() {
    let from = ferry::folder();
    let mut disk = slow_disk(from.path());
    let image = from.path().join("disk.img");
    images::random(&image, 48 * MIB, 8).unwrap();
    // A script, since the remote shell would take the words apart.
    let receiver = from.path().join("receiver");
    let quoted = |word: OsString| format!("'{}'", word.to_str().unwrap());
    let words: Vec<String> = capped(&mut disk, ferry::vmferry().as_ref()).into_iter().map(quoted).collect();
    fs::write(&receiver, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "))).unwrap();
    fs::set_permissions(&receiver, Permissions::from_mode(0o755)).unwrap();
    let target = disk.folder().unwrap().join("copy.img");
    let done = Ferry::local().remote_path(receiver.to_str().unwrap()).arg(&image).send(&target).done();
    assert_eq!(done["bottleneck"], "write");
    images::equal(&image, &target).unwrap();
}

#[test]
fn a_slow_source_disk_is_named() {
    let to = ferry::folder();
    let mut disk = slow_disk(to.path());
    let image = disk.folder().unwrap().join("disk.img");
    disk.write_cap(None).unwrap();
    images::random(&image, 48 * MIB, 9).unwrap();
    // `env` becomes the command that follows.
    let done = Ferry::local().wrap(capped(&mut disk, "env".as_ref())).arg(&image).send(to.path()).done();
    assert_eq!(done["bottleneck"], "read");
}

#[track_caller]
fn told_to_people(words: &[&str]) -> (Sent, String) {
    let (from, to) = (ferry::folder(), ferry::folder());
    let image = from.path().join("disk.img");
    images::random(&image, 6 * MIB, 10).unwrap();
    let link = slow_link();
    let sent = Ferry::over(&link).for_people().args(words).arg(&image).send(to.path());
    assert_eq!(sent.exit, 0, "{}", sent.stderr);
    (sent, images::b3(&image).unwrap())
}

#[test]
fn people_get_sentences() {
    let (sent, b3) = told_to_people(&["--log-interval", "0.1"]);
    for said in [&sent.stdout, &sent.stderr] {
        let objects = said.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok());
        assert_eq!(objects.count(), 0, "{said}");
    }
    for part in ["disk.img -> there:", "6.0 MiB of data", "4 TLS connections", "slowest stage: network"] {
        assert!(sent.stdout.contains(part), "no '{part}' in {}", sent.stdout);
    }
    // As b3sum prints it, so that its output can be compared.
    assert!(sent.stdout.contains(&format!("{b3}  disk.img\n")), "{}", sent.stdout);
    let steps: Vec<&str> = sent.stderr.lines().filter(|line| line.contains(" of 6.0 MiB")).collect();
    assert!(steps.len() >= 3, "{}", sent.stderr);
}

#[test]
fn without_a_terminal_and_without_an_interval_nothing_moves() {
    let (sent, _) = told_to_people(&[]);
    assert_eq!(sent.stderr, "");
    assert!(!sent.stdout.contains('\r') && !sent.stdout.contains('\x1b'), "{:?}", sent.stdout);
}

#[test]
fn quiet_says_nothing() {
    let (sent, _) = told_to_people(&["--quiet", "--log-interval", "0.1"]);
    assert_eq!((sent.stdout.as_str(), sent.stderr.as_str()), ("", ""));
}
