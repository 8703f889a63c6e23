//! What both ends of a verification tell: messages, then what is compared.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use proto::control::{self, HEAD_LEN, Message};
use proto::granules::Content;
use proto::verify::{Account, Comparison, Go, Inquiry, Told};

fn hear<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else { return };
    let Ok(len) = control::payload_len::<M>(head) else { return };
    // The length is bounded before anything is allocated for it.
    assert!((1..=4 << 20).contains(&len), "{len}");
    let payload = [&head[HEAD_LEN - 1..], rest].concat();
    let Some(payload) = payload.get(..len) else { return };
    if let Ok(message) = control::decode::<M>(payload) {
        let again = control::encode(&message).expect("what was within its limit still is");
        assert_eq!(control::decode::<M>(&again[HEAD_LEN - 1..]).expect("our own words"), message);
    }
}

/// Steps of either end: one byte says whose and what, eight more how many.
fn compare(bytes: &[u8]) {
    let Some((size, mut rest)) = bytes.split_first_chunk::<8>() else { return };
    // As large as an image may be.
    let size = u64::from_le_bytes(*size) >> 1;
    let (mut comparison, mut account) = (Comparison::new(size), Account::new(size));
    let mut last: Range<u64> = 0..0;
    let mut differs = |range: Range<u64>| {
        assert!(range.start < range.end && range.end <= size && (range.start > last.end || last.is_empty()));
        last = range;
    };
    while let Some((first, after)) = rest.split_first() {
        let (end, mut run) = (usize::from(first & 1), Content::Data([first >> 2; 32]));
        rest = after;
        if first & 2 != 0 {
            let Some((count, after)) = rest.split_first_chunk::<8>() else { return };
            run = Content::Zero(u64::from_le_bytes(*count) >> (first >> 2));
            rest = after;
        }
        let _ = account.add(&run);
        if !comparison.wants(end) || comparison.add(end, run, &mut differs).is_err() {
            return;
        }
    }
    if comparison.end(0).is_ok() && comparison.end(1).is_ok() {
        comparison.close(&mut differs);
    }
}

fuzz_target!(|bytes: &[u8]| {
    hear::<Inquiry>(bytes);
    hear::<Go>(bytes);
    hear::<Told>(bytes);
    // Without a length in front, so that the fuzzer need not guess it.
    let _ = control::decode::<Inquiry>(bytes);
    let _ = control::decode::<Go>(bytes);
    let _ = control::decode::<Told>(bytes);
    compare(bytes);
});
