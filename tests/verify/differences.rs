//! What is equal, what is not, and where.

use std::fs::File;

use testbed::images;
use testbed::net::{Link, LinkConfig};

use crate::ferry::{Sent, testbed, vmferry};
use crate::scene::{Attempt, says};
use crate::{MIB, Pair, compared, ranges, there};

#[test]
fn equal_images_are_equal_wherever_they_are() {
    let pair = Pair::equal(9 * MIB + 513);
    let (a, b) = (pair.a.clone().into_os_string(), pair.b.clone().into_os_string());
    for images in [
        [a.clone(), b.clone()],
        [a.clone(), a],
        pair.apart(),
        [there(&pair.a), b],
        [there(&pair.a), there(&pair.b)],
    ] {
        let sent = pair.start(&[], &images).wait();
        let done = sent.done();
        assert_eq!((&done["images"], &done["image_bytes"]), (&2.into(), &(9 * MIB + 513).into()));
        let found = compared(&sent);
        assert_eq!((&found["equal"], &found["differing_bytes"]), (&true.into(), &0.into()), "{images:?}");
        let started = &sent.events()[0];
        assert_eq!(
            (&started["event"], &started["images"][1]["size"]),
            (&"started".into(), &(9 * MIB + 513).into())
        );
        assert_eq!(started["images"][0]["image"], images[0].to_str().unwrap());
        assert!(started["images"][0]["engine"].is_string());
    }
    pair.nobody_is_left();
}

#[test]
fn each_host_reads_its_own() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let pair = Pair::equal(5 * MIB);
    let run = || {
        let mut command = link.a().command(vmferry());
        let rsh = format!("{} local-shell --noise welcome --netns {}", testbed().display(), link.b().name());
        command.args(["verify", "--json"]).args(pair.apart()).args(["--rsh", &rsh]);
        command.args(["--remote-path", &pair.peer()]);
        Attempt::start(command).wait()
    };
    run().done();
    pair.spoil(4 * MIB, b"x");
    assert_eq!(run().exit, 4);
}

#[test]
fn one_byte_is_enough_wherever_it_is() {
    let size = 9 * MIB + 513;
    for (at, start) in [(0, 0), (3 * MIB - 1, 2 * MIB), (3 * MIB, 3 * MIB), (size - 1, 9 * MIB)] {
        let pair = Pair::with(|path| images::random(path, size, 3).unwrap());
        let mut byte = [std::fs::read(&pair.b).unwrap()[at as usize]];
        byte[0] ^= 1;
        pair.spoil(at, &byte);
        for images in [pair.apart(), pair.here()] {
            let sent = pair.start(&[], &images).wait();
            let end = (start + MIB).min(size);
            says(
                &sent.failed(4),
                &[&images[0].to_string_lossy(), "not equal", &format!("1 range of {}", end - start)],
            );
            assert_eq!(ranges(&sent), [(start, end)], "byte {at}");
            assert_eq!(compared(&sent)["differing_bytes"], end - start);
        }
    }
}

#[test]
fn data_in_what_is_a_hole_at_the_other_end() {
    let pair = Pair::with(|path| File::create(path).unwrap().set_len(64 * MIB).unwrap());
    pair.verify(&[]).done();
    pair.spoil(20 * MIB + 7, b"x");
    pair.spoil(21 * MIB + 7, b"x");
    pair.spoil(63 * MIB, b"x");
    for option in ["--engine=auto", "--trust-holes", "--engine=sync", "--no-direct"] {
        let sent = pair.verify(&[option]);
        says(&sent.failed(4), &["2 ranges", &(3 * MIB).to_string()]);
        assert_eq!(ranges(&sent), [(20 * MIB, 22 * MIB), (63 * MIB, 64 * MIB)], "{option}");
    }
}

#[test]
fn written_zeros_are_as_good_as_a_hole() {
    let pair = Pair::equal(16 * MIB);
    File::create(&pair.a).unwrap().set_len(16 * MIB).unwrap();
    std::fs::write(&pair.b, vec![0; 16 << 20]).unwrap();
    pair.verify(&[]).done();
    pair.verify(&["--trust-holes"]).done();
}

#[test]
fn an_image_that_is_longer_is_not_equal() {
    let pair = Pair::equal(8 * MIB + 100);
    File::options().write(true).open(&pair.b).unwrap().set_len(9 * MIB).unwrap();
    let sent = pair.verify(&[]);
    let sizes = [(8 * MIB + 100).to_string(), (9 * MIB).to_string()];
    says(&sent.failed(4), &[&format!("they have {} and {} bytes", sizes[0], sizes[1]), "are equal"]);
    assert_eq!((ranges(&sent), &compared(&sent)["equal"]), (vec![], &false.into()));
    // The common part is compared all the same.
    pair.spoil(MIB, b"x");
    let sent = pair.verify(&[]);
    says(&sent.failed(4), &["they have", "1 range"]);
    assert_eq!(ranges(&sent), [(MIB, 2 * MIB)]);
    // As much of both as somebody wants to have compared.
    assert_eq!(pair.verify(&["--size", "1M"]).done()["image_bytes"], MIB);
    says(&pair.verify(&["--size", &sizes[1]]).failed(4), &["they have"]);
    // Empty images.
    for path in [&pair.a, &pair.b] {
        let emptied = Pair::with(|path| drop(File::create(path).unwrap()));
        emptied.verify(&[]).done();
        File::create(path).unwrap();
        if path == &pair.a {
            says(&pair.verify(&[]).failed(4), &["they have 0 and"]);
        }
    }
}

fn for_people(pair: &Pair, options: &[&str]) -> Sent {
    let words = options.iter().map(std::ffi::OsString::from).chain(pair.apart()).collect::<Vec<_>>();
    Attempt::start(pair.command(&words)).wait()
}

#[test]
fn people_are_told_of_twenty_ranges_and_scripts_of_all() {
    let pair = Pair::with(|path| images::random(path, 60 * MIB, 3).unwrap());
    assert_eq!(for_people(&pair, &["-q"]).stdout, "");
    let equal = for_people(&pair, &[]);
    assert_eq!(equal.exit, 0, "{}", equal.stderr);
    says(&equal.stdout, &["are equal", "60.0 MiB each in", "engine: "]);
    for granule in (0..50).step_by(2) {
        pair.spoil(granule * MIB, &[0; 9]);
    }
    let sent = pair.verify(&[]);
    assert_eq!(sent.exit, 4);
    assert_eq!((ranges(&sent).len(), &compared(&sent)["differing_ranges"]), (25, &25.into()));
    let sent = for_people(&pair, &[]);
    assert_eq!(sent.exit, 4);
    let lines: Vec<_> = sent.stdout.lines().collect();
    assert_eq!((lines.len(), lines[0]), (21, "bytes 0 to 1048576 differ (1.0 MiB)"), "{}", sent.stdout);
    assert_eq!(lines[20], "and 5 more ranges");
    says(&sent.stderr, &["25 ranges", "are not equal"]);
    let quiet = for_people(&pair, &["-q"]);
    assert!(quiet.stdout.is_empty() && quiet.stderr.contains("25 ranges"));
}

#[test]
fn progress_is_that_of_the_end_that_is_behind() {
    let pair = Pair::with(|path| File::create(path).unwrap().set_len(2048 * MIB).unwrap());
    let sent = pair.verify(&["--log-interval", "0.1"]);
    sent.done();
    for event in sent.events().iter().filter(|e| e["event"] == "progress") {
        assert!(event["done_bytes"].as_u64().unwrap() <= event["image_bytes"].as_u64().unwrap(), "{event}");
        assert_eq!(event["read_bps"].as_array().unwrap().len(), 2, "{event}");
    }
}
