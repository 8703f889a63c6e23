//! What one key, and all of them together, may take at once.

use std::fs::File;

use proto::control::{CONTROL, Failure, ToReceiver, ToSender, Transport};
use proto::join::Secret;

use crate::attack::{self, Tls, hear, identity, join, say, secure};
use crate::callers::job;
use crate::ferry::Sent;
use crate::house::{House, MIB, Service};
use crate::scene::{Attempt, says};
use crate::watch::eventually;

/// Slow enough to be still there, whatever else this machine does.
const SLOW: [&str; 2] = ["--limit", "4Mb/s"];

fn slow(house: &House, service: &Service, name: &str, image: &str, words: &[&str]) -> Attempt {
    house.image(image, 24 * MIB);
    house.under_way(service, name, &[&SLOW, words, &[image]].concat(), "")
}

/// The same command, until it is no longer refused for this reason.
#[track_caller]
fn free_again(why: &str, send: impl Fn() -> Sent) {
    eventually("the limit is free again", || match send() {
        sent if sent.exit == 3 && sent.stdout.contains(why) => None,
        sent => Some(sent),
    })
    .done();
}

#[test]
fn jobs_of_one_key() {
    let house = House::with(&["a", "b"]);
    let service = house.start(&[]);
    let first = slow(&house, &service, "a", "1.img", &[]);
    let second = slow(&house, &service, "a", "2.img", &[]);
    house.image("3.img", MIB);
    house.image("4.img", MIB);
    let third = || house.sent(&service, "a", &["3.img"], "");
    says(&third().failed(3), &["127.0.0.1", "2 jobs of this key are running", "let one end first"]);
    service.until_reason("refused", &["2 jobs of this key"]);
    // That is no reason to refuse another one.
    house.sent(&service, "b", &["4.img"], "").done();
    // Killed without a word.
    first.signal("KILL");
    service.until("failed", |_| true);
    free_again("2 jobs of this key", third);
    let kept = ["1.img.vmferry-ledger", "1.img.vmferry-part"];
    assert_eq!(house.listed(), [&kept[..], &["2.img.vmferry-part", "3.img", "4.img"]].concat());
    drop(second);
}

#[test]
fn jobs_of_all_keys() {
    let house = House::with(&["a", "b"]);
    let service = house.start(&["--jobs", "1"]);
    let first = slow(&house, &service, "a", "1.img", &[]);
    house.image("2.img", MIB);
    let second = || house.sent(&service, "b", &["2.img"], "");
    says(&second().failed(3), &["busy with 1 job,", "try again later"]);
    first.signal("TERM");
    first.wait().failed(6);
    free_again("busy with", second);
}

#[test]
fn connections_of_one_key() {
    let house = House::with(&["a", "b"]);
    let service = house.start(&["--lanes-per-key", "5"]);
    let first = slow(&house, &service, "a", "1.img", &["--streams", "4"]);
    house.image("2.img", MIB);
    let send = |name, streams| house.sent(&service, name, &["--streams", streams, "2.img"], "");
    let told = send("a", "2").failed(3);
    says(&told, &["2 connections more are too many", "has 4", "may have 5", "--streams"]);
    says(&send("b", "6").failed(3), &["has 0", "may have 5"]);
    send("a", "1").done();
    first.signal("KILL");
    house.image("3.img", MIB);
    let more = || house.sent(&service, "a", &["--streams", "5", "3.img"], "");
    free_again("connections more", more);
}

#[test]
fn memory_of_one_key_and_of_all() {
    let house = House::with(&["a", "b"]);
    let service = house.start(&["--memory-per-key", "30M", "--memory", "40M"]);
    let first = slow(&house, &service, "a", "1.img", &[]);
    house.image("2.img", MIB);
    let send = |name, words: &[&str]| house.sent(&service, name, &[words, &["2.img"]].concat(), "");
    let told = send("a", &[]).failed(3);
    says(
        &told,
        &["20971520 bytes of buffers more are too much", "has 20971520", "may have 31457280", "--memory"],
    );
    says(
        &send("b", &["--memory", "24M"]).failed(3),
        &["25165824 bytes of buffers are not free now", "later"],
    );
    // What is read back has to be remembered.
    File::create(house.path("vast.img")).unwrap().set_len(1 << 40).unwrap();
    let told = house.sent(&service, "b", &["--verify", "readback", "vast.img"], "").failed(3);
    says(&told, &["bytes of buffers more are too much"]);
    send("b", &["--chunk", "64K"]).done();
    first.signal("KILL");
    house.image("3.img", MIB);
    free_again("bytes of buffers", || house.sent(&service, "a", &["3.img"], ""));
}

/// A job that failed has its buffers as long as its sender does not hang up: it goes on counting.
#[test]
fn memory_counts_as_long_as_it_is_there() {
    let house = House::with(&["a"]);
    let service = house.start(&["--memory-per-key", "24M", "--jobs-per-key", "9"]);
    let (at, key, secret) = (service.address(), identity(&house.path("a")), Secret([1; 32]));
    let begin = || -> (Tls, ToSender) {
        let session = attack::session(at, &key, &secret, Transport::Tls);
        let mut control = join(secure(at, &key), session, CONTROL.0, &secret).unwrap();
        say(&mut control, &job(4));
        let verdict = hear(&mut control);
        (control, verdict)
    };
    let (mut first, accepted) = begin();
    assert!(matches!(accepted, ToSender::Accept(_)), "{accepted:?}");
    say(&mut first, &ToReceiver::Abort(Failure::new(1, "as if")));
    while !matches!(hear(&mut first), ToSender::Fail(_)) {}
    let (_second, refused) = begin();
    let ToSender::Fail(failure) = refused else { panic!("{refused:?}") };
    says(&failure.reason, &["bytes of buffers more are too much"]);
    drop(first);
    eventually("it is free again", || matches!(begin().1, ToSender::Accept(_)).then_some(()));
}
