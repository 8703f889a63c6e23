//! The hot pieces of a move, each alone and in bytes per second.
//!
//! Goal: when a whole move becomes slower or faster, these say which piece did. A name is
//! piece/variant/size; `make bench-micro PIECE=hash` runs one piece.
//! Non-goals: what a move reaches (`against-rawloop` and `axes` say that), and absolute figures that
//! mean anything on another machine.

// Criterion's macro makes the public functions, and nothing here can fail in a way worth telling.
#![allow(missing_docs, clippy::unwrap_used)]

mod compress;
mod disk;
mod frame;
mod hash;
mod lane;
mod scan;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proto::extents::BlockMap;
use proto::geometry::{BLOCK, ChunkSize};

/// The default chunk, which is also a granule: 1 MiB.
const CHUNK: ChunkSize = ChunkSize::DEFAULT;

/// Bytes without a zero block.
fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testbed::images::content::fill(7, 0, &mut bytes);
    bytes
}

/// A map of `len` bytes of which everything is data.
fn full(len: usize) -> BlockMap {
    let mut map = BlockMap::EMPTY;
    map.set(0..len.div_ceil(BLOCK as usize));
    map
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
}

criterion_group! {
    name = pieces;
    config = short();
    targets = hash::all, scan::all, frame::all, disk::all, lane::all, compress::all
}
criterion_main!(pieces);
