//! One end, or the way between them, ends in the middle of a copy.

use testbed::net::Link;

use crate::scene::{Attempt, Scene, hurry, says, signal, slow_link};

/// A copy in its middle.
fn copying() -> (Link, Scene, Attempt) {
    copying_with("4")
}

/// The same, with this patience in seconds.
fn copying_with(patience: &str) -> (Link, Scene, Attempt) {
    let (link, scene) = (slow_link(), Scene::new(48 << 20));
    let ferry = scene.over(&link).args(["--log-interval", "0.1", "--peer-timeout", "3", "--streams", "8"]);
    let mut attempt = scene.start(&ferry.args(["--patience", patience]));
    attempt.until_copying();
    assert!(scene.there.join("disk.img.vmferry-part").exists(), "the test is too late");
    (link, scene, attempt)
}

fn interrupted_by(name: &str) {
    let (_link, scene, attempt) = copying();
    attempt.signal(name);
    let reason = attempt.wait().failed(6);
    says(&reason, &["interrupted", "the destination", "run the same command again"]);
    scene.untouched();
}

#[test]
fn an_interrupted_sender_cleans_up_and_says_how_to_go_on() {
    interrupted_by("INT");
}

#[test]
fn a_terminated_sender_cleans_up_and_says_how_to_go_on() {
    interrupted_by("TERM");
}

#[test]
fn a_sender_whose_terminal_goes_away_cleans_up() {
    interrupted_by("HUP");
}

#[test]
fn a_killed_sender_is_noticed_by_the_receiver() {
    let (_link, scene, attempt) = copying();
    attempt.signal("KILL");
    assert_eq!(attempt.wait().exit, -1);
    scene.untouched();
}

#[test]
fn a_killed_receiver_is_said_to_be_gone() {
    // The end is certain long before patience is over.
    let (link, scene, attempt) = copying_with("3600");
    signal(scene.receiver(), "KILL");
    let reason = attempt.wait().failed(1);
    says(&reason, &["the receiver went away without a reason", "check there", "send again"]);
    // Its part file stays; the next attempt says so and starts over.
    hurry(&link);
    let mut again = scene.start(&scene.over(&link));
    let started = again.until(|e| e["event"] == "started");
    says(&started["notices"].to_string(), &["unfinished copy", "was started over"]);
    again.wait().done();
    scene.arrived();
}

#[test]
fn a_stopped_receiver_is_given_up() {
    let (_link, scene, attempt) = copying();
    let receiver = scene.receiver();
    signal(receiver, "STOP");
    let reason = attempt.wait().failed(6);
    says(&reason, &["there fell silent", "nothing heard for 3 s"]);
    signal(receiver, "CONT");
    scene.untouched();
}

#[test]
fn a_cut_link_ends_both_ends() {
    let (link, scene, attempt) = copying();
    link.cut().unwrap();
    let reason = attempt.wait().failed(6);
    says(&reason, &["there fell silent", "not reached again within 4 s"]);
    scene.untouched();
}

/// The sender is told to give up, and then the receiver cannot be told.
#[test]
fn an_interrupt_on_a_cut_link_still_ends_both_ends() {
    let (link, scene, attempt) = copying();
    link.cut().unwrap();
    attempt.signal("INT");
    attempt.wait().failed(6);
    scene.untouched();
}
