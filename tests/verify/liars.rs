//! Another end that says what no vmferry says.

use std::fs;

use proto::control::{self, Failure, Message};
use proto::verify::Told;
use proto::version::{Hello, Role};

use crate::ferry::Sent;
use crate::scene::{fake, says};
use crate::{MIB, Pair};

fn open(size: u64) -> Vec<u8> {
    said(&Told::Open { size, device: false, engine: "sync".into(), notices: vec![] })
}

fn said<M: Message>(message: &M) -> Vec<u8> {
    control::encode(message).unwrap()
}

/// Verifies against an end that says this after its hello, and then keeps quiet.
fn against(pair: &Pair, words: &[Vec<u8>]) -> Sent {
    let (script, speech) = (pair.folder.path().join("shell"), pair.folder.path().join("speech"));
    fs::write(&speech, [&fake::opening(Hello::ours(Role::Bootstrap))[..], &words.concat()].concat()).unwrap();
    fs::write(&script, format!("cat {}; while read -r line; do :; done", speech.display())).unwrap();
    let mut command = std::process::Command::new(crate::ferry::vmferry());
    command.args(["verify", "--json", "--peer-timeout", "3"]).args(pair.apart());
    command.args(["--rsh", &format!("sh {}", script.display())]).stdin(std::process::Stdio::null());
    crate::Attempt::start(command).wait()
}

#[test]
fn what_does_not_fit_the_image_cannot_be_read() {
    let pair = Pair::equal(4 * MIB);
    let unchanged = || said(&Told::Unchanged { notices: vec![] });
    for words in [
        vec![open(4 * MIB), said(&Told::Zero(5))],
        vec![open(4 * MIB), said(&Told::Zero(0))],
        vec![open(4 * MIB), said(&Told::Zero(u64::MAX)), unchanged()],
        vec![open(4 * MIB), open(4 * MIB)],
        vec![open(4 * MIB), vec![255; 64]],
        vec![open(4 * MIB), [&100_000u32.to_le_bytes()[..], &[2; 100]].concat()],
    ] {
        says(&against(&pair, &words).failed(1), &["there: what it says cannot be read"]);
    }
    // Before anything was read it is a refusal.
    for words in [vec![open(u64::MAX)], vec![unchanged()], vec![said(&Told::Zero(1))], vec![vec![255; 9]]] {
        says(&against(&pair, &words).failed(3), &["there: ", "cannot be read"]);
    }
}

#[test]
fn too_little_is_not_equal() {
    let pair = Pair::equal(4 * MIB);
    let sent =
        against(&pair, &[open(4 * MIB), said(&Told::Zero(1)), said(&Told::Unchanged { notices: vec![] })]);
    says(&sent.failed(1), &["there: what it says cannot be read"]);
}

#[test]
fn a_failure_is_one_whatever_it_is_called() {
    let pair = Pair::equal(MIB);
    for exit in [0, 1, 4, 99] {
        let sent = against(&pair, &[open(MIB), said(&Told::Failed(Failure::new(exit, "no")))]);
        says(&sent.failed(1), &["there: no"]);
    }
}

#[test]
fn an_end_that_says_nothing_is_given_up() {
    let pair = Pair::equal(MIB);
    says(&against(&pair, &[open(MIB)]).failed(1), &["there: nothing heard for 3 s"]);
    let alive = said(&Told::Alive { done: u64::MAX });
    says(&against(&pair, &[alive]).failed(3), &["there: nothing heard for 3 s"]);
}
