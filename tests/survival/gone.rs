//! The other process is gone while its host is there: nobody waits for as long as patience would.

use crate::bed::copying;
use crate::scene::{hurry, says, signal};

/// Longer than the tests wait.
const PATIENCE: &str = "3600";

#[test]
fn a_killed_receiver_is_found_out_soon() {
    let bed = copying("tls", PATIENCE);
    signal(bed.scene.receiver(), "KILL");
    let reason = bed.attempt.wait().failed(1);
    says(&reason, &["the receiver went away without a reason", "check there", "send again"]);
}

#[test]
fn a_killed_sender_is_found_out_soon() {
    let bed = copying("tcp", PATIENCE);
    bed.attempt.signal("KILL");
    assert_eq!(bed.attempt.wait().exit, -1);
    bed.scene.untouched();
}

/// A sender's host that lost its power says nothing: the receiver waits for it, but not when the same
/// command comes from there again.
#[test]
fn a_new_attempt_takes_over_from_one_whose_sender_vanished() {
    let bed = copying("tls", PATIENCE);
    for port in bed.ports() {
        bed.link.cut_flow(port, crate::bed::PORT).unwrap();
    }
    bed.attempt.signal("KILL");
    assert_eq!(bed.attempt.wait().exit, -1);
    hurry(&bed.link);
    let done = bed.scene.send(&bed.scene.over(&bed.link)).done();
    assert!(done["resumed_bytes"].as_u64() > Some(0), "{done}");
    bed.scene.arrived();
}

/// The receiver's own reason arrives though it has no connection to say it on at the time.
#[test]
fn a_reason_outlives_the_connection() {
    let mut bed = copying("tls", PATIENCE);
    let receiver = bed.scene.receiver();
    let control = bed.ports()[0];
    signal(receiver, "STOP");
    bed.link.reset_flow(control, crate::bed::PORT).unwrap();
    bed.until("lost", |n| n == 0);
    signal(receiver, "TERM");
    signal(receiver, "CONT");
    let reason = bed.attempt.wait().failed(6);
    says(&reason, &["there: the receiver was told to end"]);
    bed.scene.untouched();
}
