//! Zeros inside data.

use std::ops::Range;

use proto::extents::{BlockMap, is_zero};
use proto::geometry::{BLOCK, GRANULE};

/// Zero runs shorter than this, bytes, between data travel as data: a hole costs the receiver an
/// extent and a separate write, which is dearer than sending 32 KiB.
const RUN_MIN: usize = 32 << 10;

/// Which blocks of a chunk must travel: those in `extents` that are not zero. A granule that is
/// all zero keeps no block, so that digests do not depend on how zeros came about.
pub(crate) fn data_map(bytes: &[u8], extents: &BlockMap) -> BlockMap {
    let block = BLOCK as usize;
    let mut map = BlockMap::EMPTY;
    let granule_blocks = GRANULE as usize / block;
    for (g, granule) in bytes.chunks(GRANULE as usize).enumerate() {
        let first = g * granule_blocks;
        let mut kept: Option<Range<usize>> = None;
        for (i, content) in (first..).zip(granule.chunks(block)) {
            if !extents.contains(i) || is_zero(content) {
                continue;
            }
            // Bridge a short gap, but only across blocks that are allocated at the source.
            kept = match kept {
                Some(run) if (i - run.end) * block < RUN_MIN && (run.end..i).all(|b| extents.contains(b)) => {
                    Some(run.start..i + 1)
                }
                Some(run) => {
                    map.set(run);
                    Some(i..i + 1)
                }
                None => Some(i..i + 1),
            };
        }
        if let Some(run) = kept {
            map.set(run);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: usize = BLOCK as usize;

    fn all(blocks: usize) -> BlockMap {
        let mut m = BlockMap::EMPTY;
        m.set(0..blocks);
        m
    }

    #[test]
    fn long_zero_runs_are_left_out_short_ones_bridged() {
        let mut bytes = vec![0u8; 1 << 20];
        bytes[5] = 1;
        bytes[4 * B] = 1; // 3 blocks between: bridged
        bytes[100 * B + B - 1] = 1;
        let map = data_map(&bytes, &all(256));
        let runs: Vec<_> = map.runs(1 << 20).map(|r| (r.start as usize / B, r.end as usize / B)).collect();
        assert_eq!(runs, [(0, 5), (100, 101)]);
    }

    #[test]
    fn holes_are_never_bridged_and_never_data() {
        let mut bytes = vec![0u8; 1 << 20];
        bytes[0] = 1;
        bytes[2 * B] = 1;
        let mut extents = all(1);
        extents.set(2..3);
        let map = data_map(&bytes, &extents);
        assert_eq!(map.runs(1 << 20).count(), 2);
    }

    #[test]
    fn a_zero_granule_of_a_large_chunk_keeps_nothing() {
        let mut bytes = vec![0u8; 4 << 20];
        bytes[(1 << 20) - 1] = 1;
        bytes[2 << 20] = 1;
        let map = data_map(&bytes, &all(1024));
        assert!(!map.any(256..512) && !map.any(768..1024));
        assert!(map.contains(255) && map.contains(512));
    }

    #[test]
    fn short_tail_counts() {
        let mut bytes = vec![0u8; B + 3];
        bytes[B + 2] = 1;
        assert_eq!(data_map(&bytes, &all(2)).data_bytes(B as u32 + 3), 3);
        assert!(data_map(&[0; 70], &all(1)).is_empty());
    }
}
