//! The hashes of a chunk's leaves: whole as the sender makes them, in steps as the receiver does.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use proto::geometry::ChunkSize;
use proto::leaves::{ChunkHasher, chunk_leaves};

/// The receiver's `HASH_STEP`, bytes.
const STEP: usize = 128 << 10;

pub fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    for size in ["64K", "1M", "4M"] {
        let chunk: ChunkSize = size.parse().unwrap();
        let len = chunk.bytes() as usize;
        let (bytes, map) = (crate::noise(len), crate::full(len));
        let image = 1 << 40;
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("whole", size), |b| {
            b.iter(|| chunk_leaves(image, chunk, 3, black_box(&map), black_box(&bytes)));
        });
        group.bench_function(BenchmarkId::new("steps-of-128K", size), |b| {
            b.iter(|| {
                let mut hasher = ChunkHasher::new(image, chunk, 3, &map);
                for end in (STEP..len).step_by(STEP).chain([len]) {
                    hasher.grow(&black_box(&bytes)[..end]);
                }
                hasher.finish()
            });
        });
    }
    group.finish();
}
