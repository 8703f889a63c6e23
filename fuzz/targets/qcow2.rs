//! The header of an image: a guest may have written it.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The sender's room brings its whole engine along; this file stands alone.
#[path = "../../sender/src/qcow2.rs"]
#[allow(dead_code, reason = "only the parser is fuzzed")]
mod qcow2;

fuzz_target!(|bytes: &[u8]| {
    let mut head = b"QFI\xfb\0\0\0\x03".to_vec();
    head.extend_from_slice(bytes);
    for head in [bytes, &head[..]] {
        let needs = qcow2::needs(head);
        for name in [needs.backing, needs.data].into_iter().flatten() {
            assert!(!name.is_empty() && name.len() <= 4096 && !name.chars().any(char::is_control));
        }
    }
});
