//! The search for zeros in what was read.

// The sender's own code, which nobody but the sender may call: measured as it is.
#[allow(dead_code, unused_imports)] // its tests
#[path = "../../sender/src/scan.rs"]
mod sender_scan;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use proto::geometry::BLOCK;

pub fn all(c: &mut Criterion) {
    let len = crate::CHUNK.bytes() as usize;
    let dense = crate::noise(len);
    let zeros = vec![0; len];
    // Every 16th block (64 KiB) is data: what a file system with small files looks like.
    let mut scattered = zeros.clone();
    for block in scattered.chunks_mut(16 * BLOCK as usize) {
        block[..BLOCK as usize].copy_from_slice(&dense[..BLOCK as usize]);
    }
    // All that has to be read of each block: its data is in its last byte.
    let mut late = zeros.clone();
    for block in late.chunks_mut(BLOCK as usize) {
        block[BLOCK as usize - 1] = 1;
    }
    let extents = crate::full(len);
    let mut group = c.benchmark_group("scan");
    group.throughput(Throughput::Bytes(len as u64));
    for (name, bytes) in [("dense", dense), ("zeros", zeros), ("scattered", scattered), ("late", late)] {
        group.bench_function(BenchmarkId::new(name, crate::CHUNK), |b| {
            b.iter(|| sender_scan::data_map(black_box(&bytes), black_box(&extents)));
        });
    }
    group.finish();
}
