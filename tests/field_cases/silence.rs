//! J2: a peer that vanishes without a word and stays away is given up by both ends, and one that only
//! takes its time is not. (Interrupted, killed: `errors`. Back in time: `survival`.)

use std::fs;
use std::time::Duration;

use testbed::faults::{FaultFs, Faults};
use testbed::net::{Link, LinkConfig};

use crate::ferry::{Ferry, folder};
use crate::scene::{Attempt, Scene, fault_fs, notices, says, signal, slow_link};
use crate::watch::eventually;

const MIB: u64 = 1 << 20;
/// Longer than `--peer-timeout 3`.
const SLOW: Duration = Duration::from_millis(3600);

fn impatient(ferry: Ferry) -> Ferry {
    let ferry = ferry.args(["--log-interval", "0.1", "--peer-timeout", "3", "--streams", "8"]);
    ferry.args(["--patience", "4"])
}

/// Nobody is said to have gone away, or to be behind a firewall.
#[track_caller]
fn is_about_silence(reason: &str) {
    says(reason, &["there fell silent", "not reached again within 4 s", "the way to it"]);
    says(reason, &["run the same command again to go on"]);
    for wrong in ["went away", "closed", "firewall", "--port"] {
        assert!(!reason.contains(wrong), "'{wrong}' is not the cause: {reason}");
    }
}

/// A folder whose file system has these faults, and a job over a link to it.
fn onto(faults: Faults, size: u64) -> (Link, Scene, FaultFs, tempfile::TempDir) {
    let place = folder();
    let target = fault_fs(place.path(), faults);
    let scene = Scene::new(size).to(target.path());
    (Link::up(LinkConfig::default()).unwrap(), scene, target, place)
}

#[test]
fn j2_a_peer_that_vanishes_at_the_start() {
    // The data connections are still being made when the job is told to have started.
    let delay = Some(Duration::from_millis(80));
    let link = Link::up(LinkConfig { delay, ..LinkConfig::default() }).unwrap();
    let scene = Scene::new(4 * MIB);
    let mut attempt = scene.start(&impatient(scene.over(&link)));
    attempt.until(|e| e["event"] == "started");
    link.cut().unwrap();
    is_about_silence(&attempt.wait().failed(6));
    scene.untouched();
}

fn vanishes_in_the_middle(transport: &str) {
    let (link, scene) = (slow_link(), Scene::new(48 * MIB));
    let mut attempt = scene.start(&impatient(scene.over(&link)).args(["--transport", transport]));
    attempt.until_copying();
    link.cut().unwrap();
    is_about_silence(&attempt.wait().failed(6));
    scene.untouched();
}

#[test]
fn j2_a_peer_that_vanishes_in_the_middle() {
    vanishes_in_the_middle("tls");
}

#[test]
fn j2_a_peer_that_vanishes_in_the_middle_on_plain_tcp() {
    vanishes_in_the_middle("tcp");
}

#[test]
fn j2_a_peer_that_vanishes_while_the_copy_is_read_back() {
    let (link, scene, target, _place) = onto(Faults::default(), 4 * MIB);
    target.set(Faults { stalled_reads: Some(2 * MIB..2 * MIB + 1), ..Faults::default() });
    let attempt = scene.start(&impatient(scene.over(&link)).args(["--verify", "readback"]));
    eventually("it is read back", || (target.stalled() > 0).then_some(()));
    link.cut().unwrap();
    is_about_silence(&attempt.wait().failed(6));
    // The disk answers nothing still: what is there goes even so.
    eventually("the part file goes", || fs::read_dir(&scene.there).unwrap().next().is_none().then_some(()));
    target.set(Faults::default());
    scene.untouched();
}

#[test]
fn j2_a_peer_that_vanishes_in_the_final_flush() {
    let (link, scene, target, _place) = onto(Faults { slow_fsyncs: 2 * SLOW, ..Faults::default() }, 4 * MIB);
    let attempt = scene.start(&impatient(scene.over(&link)));
    eventually("it is flushed", || (target.counts().fsyncs > 0).then_some(()));
    link.cut().unwrap();
    let reason = attempt.wait().failed(6);
    is_about_silence(&reason);
    // All of it was sent, so it might have been finished.
    says(&reason, &["disk.img may be in place"]);
    scene.untouched();
}

/// The answer gets lost, not the copy.
#[test]
fn j2_a_copy_that_was_finished_in_silence_may_be_in_place() {
    let (link, scene, target, _place) = onto(Faults::default(), 4 * MIB);
    target.set(Faults { slow_fsyncs: Duration::from_millis(500), ..Faults::default() });
    let attempt = scene.start(&impatient(scene.over(&link)));
    eventually("it is flushed", || (target.counts().fsyncs > 0).then_some(()));
    link.cut().unwrap();
    let reason = attempt.wait().failed(6);
    is_about_silence(&reason);
    says(&reason, &["disk.img may be in place"]);
    // The same command finds that it is.
    link.mend().unwrap();
    let done = scene.send(&scene.over(&link)).done();
    assert_eq!(done["resumed_bytes"].as_u64(), Some(4 * MIB));
    scene.arrived();
}

#[test]
fn j2_a_receiver_that_is_stopped_is_silent() {
    let (link, scene) = (slow_link(), Scene::new(48 * MIB));
    let mut attempt = scene.start(&impatient(scene.over(&link)));
    attempt.until_copying();
    let receiver = scene.receiver();
    signal(receiver, "STOP");
    let reason = attempt.wait().failed(6);
    is_about_silence(&reason);
    says(&reason, &["nothing heard for 3 s"]);
    signal(receiver, "CONT");
    scene.untouched();
}

/// Ctrl-Z: the receiver gives up by itself, and the sender says why once it may go on.
#[test]
fn j2_a_sender_that_is_stopped_is_silent() {
    let (link, scene) = (slow_link(), Scene::new(48 * MIB));
    let mut attempt = scene.start(&impatient(scene.over(&link)));
    attempt.until_copying();
    attempt.signal("STOP");
    scene.untouched();
    attempt.signal("CONT");
    let reason = attempt.wait().failed(6);
    says(
        &reason,
        &[
            "there: the sender fell silent",
            "nothing heard for 3 s",
            "within 4 s",
            "run the same command again",
        ],
    );
}

/// A flush in the middle: the file takes no writes meanwhile, so nothing is taken off the wire.
fn outlasts_a_slow_flush(transport: &str) {
    let (link, scene, target, _place) = onto(Faults { slow_fsyncs: 2 * SLOW, ..Faults::default() }, 96 * MIB);
    let ferry = impatient(scene.over(&link)).args(["--sync-window", "4M", "--transport", transport]);
    let mut attempt = scene.start(&ferry);
    attempt.until_copying();
    eventually("it is flushed", || (target.counts().fsyncs > 0).then_some(()));
    target.set(Faults::default());
    attempt.wait().done();
    scene.arrived();
}

#[test]
fn j2_a_slow_flush_in_the_middle_is_not_death() {
    outlasts_a_slow_flush("tls");
}

#[test]
fn j2_a_slow_flush_in_the_middle_is_not_death_on_plain_tcp() {
    outlasts_a_slow_flush("tcp");
}

/// Data, attributes, folder: three slow flushes, and one core for all that the receiver does.
#[test]
fn j2_slow_flushes_at_the_end_are_not_death() {
    let (_, scene, target, _place) = onto(Faults { slow_fsyncs: SLOW, ..Faults::default() }, MIB);
    let ferry = impatient(scene.local()).remote_path(format!("taskset -c 0 {}", scene.peer()));
    scene.send(&ferry).done();
    assert!(target.counts().folder_fsyncs > 0);
    scene.arrived();
}

/// Zeros that are hashed for seconds after all data has arrived.
#[test]
fn j2_long_hashing_is_not_death() {
    let scene = Scene::new(MIB);
    let image = scene.here.path().join("hole.img");
    fs::File::create(&image).unwrap().set_len(12 << 30).unwrap();
    let ferry = impatient(scene.local_as(&image)).args(["--digest", "b3"]);
    let sent = Attempt::start(ferry.wrap(["taskset", "-c", "0"]).command(&scene.there)).wait();
    sent.done();
    assert_eq!(notices(&sent), Vec::<String>::new());
}
