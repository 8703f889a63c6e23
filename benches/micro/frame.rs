//! The header of a frame, written and read; the throughput is the header's own bytes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use proto::frame::{Body, Header, header_len};
use proto::geometry::ChunkSize;

/// The header of a chunk that is all data.
pub fn data(chunk: ChunkSize) -> Header {
    let len = chunk.bytes();
    let map = crate::full(len as usize);
    let leaves = vec![[5; 32]; chunk.leaves()];
    let body = Body::Data { chunk: 3, ahead: 9, map, raw_len: len, wire_len: len, leaves };
    Header { epoch: 1, seq: 0, image: 0, body }
}

pub fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame");
    for size in ["64K", "1M", "4M"] {
        let chunk: ChunkSize = size.parse().unwrap();
        let header = data(chunk);
        let mut bytes = vec![0; header_len(chunk)];
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(BenchmarkId::new("encode", size), |b| {
            b.iter(|| black_box(&header).encode(chunk, black_box(&mut bytes)));
        });
        header.encode(chunk, &mut bytes);
        group.bench_function(BenchmarkId::new("decode", size), |b| {
            b.iter(|| Header::decode(chunk, black_box(&bytes)).unwrap());
        });
    }
    group.finish();
}
