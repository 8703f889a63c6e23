//! A process that is stopped for longer than silence means death, and goes on.

use std::thread::sleep;
use std::time::Duration;

use crate::bed::{STREAMS, copying};
use crate::scene::{says, signal};

fn receiver(transport: &str) {
    let mut bed = copying(transport, "60");
    let receiver = bed.scene.receiver();
    signal(receiver, "STOP");
    bed.until("lost", |n| n == 0);
    sleep(Duration::from_secs(2));
    signal(receiver, "CONT");
    bed.until("restored", |n| n == 0);
    bed.survives(STREAMS as u64);
}

#[test]
fn a_receiver_that_goes_on_is_not_dead() {
    receiver("tls");
}

#[test]
fn a_receiver_that_goes_on_is_not_dead_on_plain_tcp() {
    receiver("tcp");
}

/// Ctrl-Z and fg.
#[test]
fn a_sender_that_goes_on_is_not_dead() {
    let bed = copying("tls", "60");
    bed.attempt.signal("STOP");
    sleep(Duration::from_secs(5));
    bed.attempt.signal("CONT");
    bed.survives(STREAMS as u64);
}

#[test]
fn a_receiver_that_stays_stopped_is_given_up() {
    let bed = copying("tls", "4");
    let receiver = bed.scene.receiver();
    signal(receiver, "STOP");
    let reason = bed.attempt.wait().failed(6);
    says(&reason, &["there fell silent (nothing heard for 3 s)", "within 4 s", "stopped or hangs"]);
    signal(receiver, "CONT");
    bed.scene.untouched();
}
