//! Messages of the control connection and of a pull, in both directions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::control::{self, HEAD_LEN, Message, ToReceiver, ToSender};
use proto::errand::{Errand, News};
use proto::telemetry::Snapshot;

fn hear<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else { return };
    let Ok(len) = control::payload_len::<M>(head) else { return };
    // The length is bounded before anything is allocated for it.
    assert!((1..=64 << 20).contains(&len), "{len}");
    let payload = [&head[HEAD_LEN - 1..], rest].concat();
    let Some(payload) = payload.get(..len) else { return };
    if let Ok(message) = control::decode::<M>(payload) {
        let again = control::encode(&message).expect("what was within its limit still is");
        assert_eq!(control::decode::<M>(&again[HEAD_LEN - 1..]).expect("our own words"), message);
    }
}

fuzz_target!(|bytes: &[u8]| {
    hear::<ToReceiver>(bytes);
    hear::<ToSender>(bytes);
    hear::<Errand>(bytes);
    hear::<News>(bytes);
    // Without a length in front, so that the fuzzer need not guess it.
    let _ = control::decode::<ToReceiver>(bytes);
    let _ = control::decode::<ToSender>(bytes);
    let _ = control::decode::<Errand>(bytes);
    if let Ok(News::Meter(now)) = control::decode::<News>(bytes) {
        // Made-up counters are shown, whatever they are.
        let _ =
            (now.bottleneck(), now.since(&Snapshot::default()).bottleneck(), Snapshot::default().since(&now));
    }
});
