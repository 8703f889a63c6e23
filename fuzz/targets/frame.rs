//! Headers of data frames, in sessions of every chunk size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::frame::{Body, Header, header_len};
use proto::geometry::ChunkSize;

fuzz_target!(|bytes: &[u8]| {
    let Some((size, rest)) = bytes.split_first() else { return };
    let chunk = ChunkSize::new(1 << (16 + u64::from(size % 7))).expect("64 KiB to 4 MiB");
    let mut header = vec![0; header_len(chunk)];
    let len = header.len().min(rest.len());
    header[..len].copy_from_slice(&rest[..len]);
    // Without having to guess the magic.
    header[..2].copy_from_slice(b"vF");
    if let Ok(frame) = Header::decode(chunk, &header) {
        let mut again = vec![0xAA; header.len()];
        frame.encode(chunk, &mut again);
        assert_eq!(again, header, "one form for each meaning");
        if let Body::Data { map, raw_len, wire_len, .. } = frame.body {
            assert!(raw_len <= chunk.bytes() && wire_len <= chunk.bytes());
            let runs: u32 = map.runs(chunk.bytes()).map(|run| run.end - run.start).sum();
            assert!(raw_len <= runs && runs <= chunk.bytes(), "the payload fits the buffer");
        }
    }
});
