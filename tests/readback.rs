//! `--verify readback`: A7, "verified" that only ever saw the page cache.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;
mod watch;

use std::fs;

use ferry::Ferry;
use scene::{Scene, fault_fs, notices, says};
use testbed::faults::{DirectIo, Faults};
use testbed::images;

const MIB: u64 = 1 << 20;

#[test]
fn good_disks_pass_whatever_is_sent() {
    for words in [&["--chunk", "64K"][..], &[], &["--chunk", "4M"], &["--no-direct"], &["--engine", "sync"]] {
        let (from, to) = (ferry::folder(), ferry::folder());
        let file = |name: &str| from.path().join(name);
        images::random(&file("dense.img"), 9 * MIB + 513, 1).unwrap();
        images::sparse(&file("sparse.img"), 512 * MIB, 12 * MIB, 3).unwrap();
        images::dirty(&file("zeros.img"), 6 * MIB + 1, 0).unwrap();
        fs::write(file("empty.img"), b"").unwrap();
        fs::write(file("byte.img"), b"x").unwrap();
        let names = ["dense.img", "sparse.img", "zeros.img", "empty.img", "byte.img"];
        let ferry = Ferry::local().args(["--verify", "readback"]).args(words.iter().copied());
        let sent = ferry.args(names.map(file)).send(to.path());
        sent.done();
        for name in names {
            images::equal(&file(name), &to.path().join(name)).unwrap();
        }
        let cached = notices(&sent).iter().any(|n| n.contains("read back without O_DIRECT"));
        assert_eq!(cached, words == ["--no-direct"], "{words:?}: said where it is so, and only there");
    }
}

/// A disk that stores another byte than it was given and reports success.
#[test]
fn a7_a_disk_that_lies_is_found_out_and_the_place_is_named() {
    for direct in [DirectIo::default(), DirectIo::RefusedAtOpen] {
        for at in [0, 5 * MIB + 4711, 24 * MIB] {
            let place = ferry::folder();
            let faults = Faults { corrupt_writes_at: Some(at), direct, ..Faults::default() };
            let disk = fault_fs(place.path(), faults);
            let scene = Scene::new(24 * MIB + 513).to(disk.path());
            let reason = scene.send(&scene.local().args(["--verify", "readback"])).failed(4);
            let start = at / MIB * MIB;
            let end = (start + MIB).min(24 * MIB + 513);
            says(&reason, &["there: disk.img", "does not give back", &format!("bytes {start} to {end}")]);
            scene.untouched();
        }
    }
}
