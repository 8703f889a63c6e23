//! The hashes of a chunk's leaves: what a frame header carries, and what [`crate::digest`] is made of.
//!
//! A leaf's hash is its chaining value in BLAKE3's own tree, so it depends on where the leaf lies.

use blake3::Hasher;
use blake3::hazmat::HasherExt;

use crate::digest::Cv;
use crate::extents::BlockMap;
use crate::geometry::{BLOCK, ChunkSize};

/// The hash of one leaf that starts at `offset` of an image of `size` bytes.
pub fn leaf_hash(offset: u64, leaf: &[u8], size: u64) -> Cv {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset).update(leaf);
    finished(&hasher, offset == 0 && leaf.len() as u64 == size)
}

/// An image of a single leaf has no tree above it: its leaf is the finished BLAKE3 hash.
fn finished(leaf: &Hasher, whole_image: bool) -> Cv {
    if whole_image { *leaf.finalize().as_bytes() } else { leaf.finalize_non_root() }
}

/// The hashes of one chunk's leaves, in order; of leaves without data in `map` all zero.
///
/// `bytes` is the chunk's part of an image of `size` bytes, everything outside `map` zeroed.
pub fn chunk_leaves(size: u64, chunk: ChunkSize, index: u64, map: &BlockMap, bytes: &[u8]) -> Vec<Cv> {
    let mut hasher = ChunkHasher::new(size, chunk, index, map);
    hasher.grow(bytes);
    hasher.finish()
}

/// [`chunk_leaves`] of a chunk that grows from its front: what has just arrived is still in the
/// core's cache.
#[derive(Debug)]
pub struct ChunkHasher<'a> {
    size: u64,
    leaf: usize,
    /// Where the chunk begins in the image.
    start: u64,
    map: &'a BlockMap,
    /// Of the present leaf.
    hasher: Hasher,
    hashed: usize,
    leaves: Vec<Cv>,
}

impl<'a> ChunkHasher<'a> {
    /// For chunk `index` of an image of `size` bytes.
    pub fn new(size: u64, chunk: ChunkSize, index: u64, map: &'a BlockMap) -> ChunkHasher<'a> {
        ChunkHasher {
            size,
            leaf: chunk.leaf() as usize,
            start: index * u64::from(chunk.bytes()),
            map,
            hasher: Hasher::new(),
            hashed: 0,
            leaves: vec![[0; 32]; chunk.leaves()],
        }
    }

    /// Takes in what is new. `bytes` is the chunk up to where it is complete, everything outside
    /// the map zeroed.
    pub fn grow(&mut self, bytes: &[u8]) {
        let blocks = self.leaf / BLOCK as usize;
        while self.hashed < bytes.len() {
            let i = self.hashed / self.leaf;
            let end = bytes.len().min((i + 1) * self.leaf);
            if self.map.any(i * blocks..(i + 1) * blocks) {
                let begins = self.hashed == i * self.leaf;
                if begins {
                    self.hasher = Hasher::new(); // a reset one keeps its offset
                    self.hasher.set_input_offset(self.start + self.hashed as u64);
                }
                self.hasher.update(&bytes[self.hashed..end]);
            }
            self.hashed = end;
            if end == (i + 1) * self.leaf {
                self.close(i);
            }
        }
    }

    /// The hashes.
    pub fn finish(mut self) -> Vec<Cv> {
        if !self.hashed.is_multiple_of(self.leaf) {
            self.close(self.hashed / self.leaf); // the image's last leaf
        }
        self.leaves
    }

    fn close(&mut self, i: usize) {
        let blocks = self.leaf / BLOCK as usize;
        if self.map.any(i * blocks..(i + 1) * blocks) {
            let whole_image = self.start == 0 && i == 0 && self.hashed as u64 == self.size;
            self.leaves[i] = finished(&self.hasher, whole_image);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::geometry::GRANULE;

    const G: usize = GRANULE as usize;

    /// Bytes that look random; the same seed gives the same.
    pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; len];
        let mut reader = Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
        reader.fill(&mut out);
        out
    }

    /// In whatever pieces a chunk arrives, each leaf has the hash that it has alone.
    #[test]
    fn chunks_may_grow_in_pieces() {
        for (size, chunk) in
            [(4 * G, "64K"), (4 * G, "1M"), (4 * G, "2M"), (8 * G, "4M"), (3 * G + 50, "4M"), (50, "64K")]
        {
            let chunk: ChunkSize = chunk.parse().unwrap();
            let len = chunk.bytes() as usize;
            let bytes = noise(size, 3);
            for (index, part) in (0..).zip(bytes.chunks(len)) {
                let mut map = BlockMap::EMPTY;
                map.set(0..part.len().div_ceil(BLOCK as usize));
                let leaf = chunk.leaf() as usize;
                let starts = (index as usize * len..).step_by(leaf);
                let mut want: Vec<Cv> = starts
                    .zip(part.chunks(leaf))
                    .map(|(at, leaf)| leaf_hash(at as u64, leaf, size as u64))
                    .collect();
                want.resize(chunk.leaves(), [0; 32]);
                for step in [4096, 128 << 10, 3 * 4096 + 1, len] {
                    let mut hasher = ChunkHasher::new(size as u64, chunk, index, &map);
                    for end in (0..part.len()).step_by(step).skip(1).chain([part.len()]) {
                        hasher.grow(&part[..end]);
                    }
                    assert_eq!(hasher.finish(), want, "{size} in {chunk}, pieces of {step}");
                }
            }
        }
    }
}
