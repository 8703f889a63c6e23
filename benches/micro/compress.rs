//! zstd of one chunk, which vmferry does not do: what it would have to be worth.
//!
//! Throughput is in bytes of the chunk, both ways; a name says how much of it is left
//! (`text-to-30%`). Compression pays on links that carry less than one core compresses (times the
//! cores that have nothing else to do), and there it gives at most 1 / the rest.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use proto::geometry::BLOCK;
use zstd::bulk::{Compressor, Decompressor};

/// Words made of noise, the first ones more often than the last, as in logs, sources and configuration.
fn text(len: usize) -> Vec<u8> {
    let dice = crate::noise(4 * len);
    let word = |number: usize| {
        let letters = &dice[8 * number..][..2 + number % 7];
        letters.iter().map(|byte| b'a' + byte % 26).chain([b' ']).collect::<Vec<u8>>()
    };
    let words: Vec<Vec<u8>> = (0..1 << 12).map(word).collect();
    let throws = dice
        .chunks_exact(4)
        .map(|throw| usize::from(throw[0].min(throw[1])) << 4 | usize::from(throw[2] >> 4));
    throws.flat_map(|throw| words[throw].iter().copied()).take(len).collect()
}

/// A little data in every block, so that none of them is left out as zeros are.
fn mostly_zero(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let noise = crate::noise(len);
    for (block, noise) in bytes.chunks_mut(BLOCK as usize).zip(noise.chunks(BLOCK as usize)) {
        block[..256].copy_from_slice(&noise[..256]);
    }
    bytes
}

pub fn all(c: &mut Criterion) {
    let len = crate::CHUNK.bytes() as usize;
    let mut group = c.benchmark_group("compress");
    group.throughput(Throughput::Bytes(len as u64));
    for (name, bytes) in
        [("random", crate::noise(len)), ("text", text(len)), ("mostly-zero", mostly_zero(len))]
    {
        for level in [1, 3] {
            let mut compressor = Compressor::new(level).unwrap();
            let mut decompressor = Decompressor::new().unwrap();
            let small = compressor.compress(&bytes).unwrap();
            let variant = |way| {
                let percent = small.len() * 100 / len;
                BenchmarkId::new(format!("{way}-level-{level}-{name}-to-{percent}%"), crate::CHUNK)
            };
            let mut room = vec![0; zstd::zstd_safe::compress_bound(len)];
            group.bench_function(variant("compress"), |b| {
                b.iter(|| compressor.compress_to_buffer(black_box(&bytes), &mut room).unwrap());
            });
            group.bench_function(variant("expand"), |b| {
                b.iter(|| decompressor.decompress_to_buffer(black_box(&small), &mut room).unwrap());
            });
        }
    }
    group.finish();
}
