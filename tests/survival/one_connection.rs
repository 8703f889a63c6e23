//! One connection breaks while the others stand.

use crate::bed::{Bed, PORT, STREAMS, copying};

fn reset_one(transport: &str) {
    let mut bed = copying(transport, "60");
    let port = *bed.ports().last().unwrap();
    bed.link.reset_flow(port, PORT).unwrap();
    bed.until("lost", |n| n > 0);
    bed.until("restored", |n| n > 0);
    assert_eq!(bed.ports().len(), 1 + STREAMS);
    bed.survives(1);
}

#[test]
fn a_reset_lane_comes_back() {
    reset_one("tls");
}

#[test]
fn a_reset_lane_comes_back_on_plain_tcp() {
    reset_one("tcp");
}

fn reset_lanes(transport: &str) {
    let mut bed = copying(transport, "60");
    for port in &bed.ports()[1..] {
        bed.link.reset_flow(*port, PORT).unwrap();
    }
    bed.until("restored", |n| n > 0);
    bed.survives(STREAMS as u64);
}

#[test]
fn all_lanes_are_reset_and_come_back() {
    reset_lanes("tls");
}

#[test]
fn all_lanes_are_reset_and_come_back_on_plain_tcp() {
    reset_lanes("tcp");
}

/// What was acknowledged meanwhile is said again, and no lane suffers.
fn reset_control(transport: &str) {
    let mut bed = copying(transport, "60");
    for _ in 0..2 {
        let before = bed.ports();
        bed.link.reset_flow(before[0], PORT).unwrap();
        bed.until("restored", |n| n == 0);
        assert!(before[1..].iter().all(|port| bed.ports().contains(port)), "lanes go on");
    }
    let sent = bed.survives(0);
    let of_lanes = |e: &serde_json::Value| e["connection"].as_u64().is_some_and(|n| n > 0);
    assert!(!sent.events().iter().any(of_lanes), "{}", sent.stdout);
}

#[test]
fn a_reset_control_connection_comes_back() {
    reset_control("tls");
}

#[test]
fn a_reset_control_connection_comes_back_on_plain_tcp() {
    reset_control("tcp");
}

fn silence_one(transport: &str, which: impl Fn(&Bed) -> u16, lost: u64) {
    let mut bed = copying(transport, "60");
    let port = which(&bed);
    bed.link.cut_flow(port, PORT).unwrap();
    bed.until("lost", |n| (n == 0) == (lost == 0));
    bed.until("restored", |n| (n == 0) == (lost == 0));
    bed.survives(lost);
}

#[test]
fn one_lane_of_eight_falls_silent() {
    silence_one("tls", |bed| *bed.ports().last().unwrap(), 1);
}

#[test]
fn one_lane_of_eight_falls_silent_on_plain_tcp() {
    silence_one("tcp", |bed| *bed.ports().last().unwrap(), 1);
}

#[test]
fn the_control_connection_falls_silent() {
    silence_one("tls", |bed| bed.ports()[0], 0);
}
