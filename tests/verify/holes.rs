//! A file system that calls data a hole: what is sent from it, and who finds out.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use testbed::faults::Faults;
use testbed::images;

use crate::ferry::Ferry;
use crate::scene::{Attempt, fault_fs};
use crate::{MIB, Pair, ranges};

#[test]
fn a_lying_hole_map_is_found_out_and_can_be_done_without() {
    let place = crate::ferry::folder();
    let fs = fault_fs(place.path(), Faults { no_data: true, ..Faults::default() });
    let source = fs.path().join("a.img");
    images::random(&place.path().join("backing/a.img"), 6 * MIB + 99, 7).unwrap();
    let copies = crate::ferry::folder();
    let mut pair = Pair::equal(MIB);
    (pair.a, pair.b) = (source.clone(), copies.path().join("a.img"));

    // The map is believed: all that arrives is zeros.
    Ferry::local().arg(&source).send(copies.path()).done();
    assert!(fs::read(&pair.b).unwrap().iter().all(|b| *b == 0));
    for images in [pair.apart(), pair.here()] {
        let sent = pair.start(&[], &images).wait();
        sent.failed(4);
        assert_eq!(ranges(&sent), [(0, 6 * MIB + 99)]);
    }
    // Who believes it finds nothing.
    pair.verify(&["--trust-holes"]).done();

    fs::remove_file(&pair.b).unwrap();
    let pushed = Ferry::local().args(["--no-holes"]).arg(&source).send(copies.path()).done();
    assert_eq!(pushed["data_bytes"], 6 * MIB + 99);
    pair.verify(&[]).done();
    images::equal(&place.path().join("backing/a.img"), &pair.b).unwrap();

    fs::remove_file(&pair.b).unwrap();
    let fetching = Ferry::local().args(["--no-holes"]).fetching([&source], copies.path());
    Attempt::start(fetching).wait().done();
    pair.verify(&[]).done();
}

/// Zeros are found by looking, then, and still neither sent nor allocated.
#[test]
fn without_a_hole_map_zeros_stay_zeros() {
    let folder = crate::ferry::folder();
    let source = folder.path().join("a.img");
    File::create(&source).unwrap().set_len(64 * MIB).unwrap();
    File::options().write(true).open(&source).unwrap().write_all_at(&[1; 4096], 40 * MIB).unwrap();
    let copies = crate::ferry::folder();
    let done = Ferry::local().args(["--no-holes"]).arg(&source).send(copies.path()).done();
    assert_eq!(done["data_bytes"], 4096);
    let copy = copies.path().join("a.img");
    images::equal(&source, &copy).unwrap();
    assert!(images::allocated(&copy).unwrap() < MIB);
}

/// Data that are not on the disk yet are no hole: as many rounds as half a minute has room for.
#[test]
fn what_was_just_written_arrives() {
    let folder = crate::ferry::folder();
    let (source, copies) = (folder.path().join("a.img"), folder.path().join("copies"));
    fs::create_dir(&copies).unwrap();
    let started = Instant::now();
    for round in 0..200u64 {
        if started.elapsed() > Duration::from_secs(30) && round > 2 {
            break;
        }
        let mut bytes = vec![0; 64 << 20];
        images::content::fill(round, 0, &mut bytes);
        // A new file each time: nothing of it was ever allocated.
        let _ = fs::remove_file(&source);
        File::create(&source).unwrap().write_all(&bytes).unwrap();
        Ferry::local().args(["--force", "--transport", "tcp"]).arg(&source).send(&copies).done();
        assert!(fs::read(copies.join("a.img")).unwrap() == bytes, "round {round}");
    }
}

#[test]
fn trusted_holes_are_not_read() {
    let place = crate::ferry::folder();
    let fs = fault_fs(place.path(), Faults::default());
    let image = fs.path().join("a.img");
    File::create(place.path().join("backing/a.img")).unwrap().set_len(64 * MIB).unwrap();
    File::options().write(true).open(&image).unwrap().write_all_at(&[1; 4096], 40 * MIB).unwrap();
    let pair = Pair::equal(MIB);
    let read = |options: &[&str]| {
        fs.reset_counts();
        pair.start(options, &[image.clone().into()]).wait().done();
        fs.counts().read_bytes
    };
    assert_eq!(read(&["--trust-holes"]), MIB);
    assert_eq!(read(&[]), 64 * MIB);
}
