//! What comes through the remote shell: login noise, magic, hello, messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::control::{Bootstrap, BootstrapReply};
use proto::errand::{Errand, News};
use proto::verify::{Go, Inquiry, Told};

// The command is no library; its parser is built in here as it is.
#[path = "../../src/bootstrap.rs"]
#[allow(dead_code, reason = "the fuzzer only listens")]
mod bootstrap;

fn listen(from: &[u8]) {
    let _ = bootstrap::receive::<Bootstrap>(&mut { from });
    let _ = bootstrap::receive::<BootstrapReply>(&mut { from });
    let _ = bootstrap::receive::<Errand>(&mut { from });
    let _ = bootstrap::receive::<Inquiry>(&mut { from });
    let _ = bootstrap::receive::<Go>(&mut { from });
    // Of these there are many.
    let mut told = from;
    while bootstrap::receive::<Told>(&mut told).is_ok() {}
    let mut from = from;
    while bootstrap::receive::<News>(&mut from).is_ok() {}
}

fuzz_target!(|bytes: &[u8]| {
    let mut from = bytes;
    if bootstrap::accept(&mut from).is_ok() {
        listen(from);
    }
    // From behind the magic on, too: a fuzzer takes long to find that.
    let mut with_opening = Vec::new();
    bootstrap::open(&mut with_opening).expect("a vector takes everything");
    with_opening.extend_from_slice(bytes);
    let mut from = &with_opening[..];
    assert!(bootstrap::accept(&mut from).is_ok());
    listen(from);
    let said = bootstrap::last_words(bytes);
    assert!(said.chars().count() <= 200 && !said.chars().any(char::is_control));
});
