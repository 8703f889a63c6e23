//! E4: the receiver's own reason reaches the user, whatever resets follow from it. (Full disk and
//! missing permission: `errors`, as well as a receiver that is killed.)

use testbed::faults::Faults;

use crate::ferry::folder;
use crate::scene::tap::Tap;
use crate::scene::{Scene, fault_fs, hurry, says, slow_link};
use testbed::net::{Link, LinkConfig};

const MIB: u64 = 1 << 20;

/// What a job with eight busy streams fails with on such a disk.
fn fails_on(faults: Faults, options: &[&str]) -> String {
    let place = folder();
    let disk = fault_fs(place.path(), faults);
    let scene = Scene::new(24 * MIB).to(disk.path());
    let ferry = scene.local().args(["--streams", "8"]).args(options.iter().copied());
    let reason = scene.send(&ferry).failed(1);
    says(&reason, &["there: cannot", "disk.img.vmferry-part", "Input/output error"]);
    scene.untouched();
    reason
}

#[test]
fn e4_a_write_error_is_told_with_its_offset() {
    let bad = 10 * MIB..10 * MIB + 4096;
    let reason = fails_on(Faults { write_error: Some(bad), ..Faults::default() }, &[]);
    says(&reason, &["cannot write", "at byte 10485760"]);
}

#[test]
fn e4_a_failed_flush_is_told_and_not_tried_again() {
    let faults = Faults { failing_fsyncs: 1, ..Faults::default() };
    says(&fails_on(faults.clone(), &[]), &["cannot sync"]);
    // In mid-copy, with many flushes after it that would succeed.
    says(&fails_on(faults, &["--sync-window", "1M"]), &["cannot sync"]);
}

/// A bit that turns over on the way, where no checksum of TCP can find it.
#[test]
fn e4_data_that_are_damaged_on_the_way_are_never_written() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _tap = Tap::between(&link, 7000, Some(2 * MIB));
    let scene = Scene::new(24 * MIB);
    let via = link.a().address().to_string();
    let ferry = scene.over(&link).args(["--via", &via, "--port", "7000", "--streams", "8"]);
    let reason = scene.send(&ferry).failed(4);
    says(
        &reason,
        &["there: what arrived was changed or damaged on the way", "decrypt", "nothing of it was used"],
    );
    scene.untouched();
}

/// The sender's first cause, too: not what follows from it on the other side.
#[test]
fn e4_a_source_that_cannot_be_read_is_the_reason_on_this_side() {
    let place = folder();
    let source = fault_fs(place.path(), Faults::default());
    let image = source.path().join("disk.img");
    let scene = Scene::new(24 * MIB);
    std::fs::copy(&scene.image, &image).unwrap();
    source.set(Faults { read_error: Some(10 * MIB..10 * MIB + 1), ..Faults::default() });
    let reason = scene.send(&scene.local_as(&image).args(["--streams", "8"])).failed(1);
    says(&reason, &["cannot read", image.to_str().unwrap(), "at byte 10485760", "Input/output error"]);
    scene.untouched();
}

/// One lane of eight is cut off: the job goes on, and it was said which one it was.
#[test]
fn e4_one_lost_connection_of_eight_is_named() {
    let link = slow_link();
    let scene = Scene::new(48 * MIB);
    let ferry = scene.over(&link).args(["--log-interval", "0.1", "--streams", "8", "--peer-timeout", "3"]);
    let mut attempt = scene.start(&ferry.args(["--port", "7000"]));
    attempt.until_copying();
    let ports = link.a().command("ss").args(["-Htn", "state", "established", "dport", "=", ":7000"]).output();
    let ports = String::from_utf8(ports.expect("ss is missing: run `make deps`").stdout).unwrap();
    let port_of =
        |line: &str| -> Option<u16> { line.split_whitespace().nth(2)?.rsplit(':').next()?.parse().ok() };
    // The control connection was made first and has the lowest port of them all.
    let last = ports.lines().filter_map(port_of).max().unwrap();
    link.cut_flow(last, 7000).unwrap();
    let lost = attempt.until(|e| e["event"] == "lost");
    assert_eq!(lost["connection"], 8, "{lost}");
    says(lost["reason"].as_str().unwrap(), &["nothing heard for 3 s"]);
    let restored = attempt.until(|e| e["event"] == "restored");
    assert_eq!(restored["connection"], 8, "{restored}");
    hurry(&link);
    attempt.wait().done();
    scene.arrived();
}
