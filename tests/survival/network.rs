//! The whole network goes away.

use std::thread::sleep;
use std::time::Duration;

use crate::bed::{PORT, STREAMS, copying};
use crate::scene::says;

fn cut_and_mended(transport: &str) {
    let mut bed = copying(transport, "60");
    bed.link.cut().unwrap();
    bed.until("lost", |n| n == 0);
    // Long enough for both ends to have noticed.
    sleep(Duration::from_secs(4));
    bed.link.mend().unwrap();
    bed.until("restored", |n| n == 0);
    bed.survives(STREAMS as u64);
}

#[test]
fn a_link_that_comes_back_is_used_again() {
    cut_and_mended("tls");
}

#[test]
fn a_link_that_comes_back_is_used_again_on_plain_tcp() {
    cut_and_mended("tcp");
}

fn cut_for_good(transport: &str) {
    let bed = copying(transport, "5");
    bed.link.cut().unwrap();
    let reason = bed.attempt.wait().failed(6);
    says(&reason, &["there fell silent (nothing heard for 3 s)", "not reached again within 5 s"]);
    says(&reason, &["the way to it is cut", "run the same command again to go on"]);
    bed.scene.untouched();
}

#[test]
fn a_link_that_stays_away_ends_both_ends() {
    cut_for_good("tls");
}

#[test]
fn a_link_that_stays_away_ends_both_ends_on_plain_tcp() {
    cut_for_good("tcp");
}

fn reset_everything(transport: &str) {
    let mut bed = copying(transport, "60");
    for port in bed.ports() {
        bed.link.reset_flow(port, PORT).unwrap();
    }
    bed.until("restored", |n| n == 0);
    bed.survives(STREAMS as u64);
}

#[test]
fn every_connection_is_reset_and_comes_back() {
    reset_everything("tls");
}

#[test]
fn every_connection_is_reset_and_comes_back_on_plain_tcp() {
    reset_everything("tcp");
}
