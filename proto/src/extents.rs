//! Which parts of an image hold data: a bit map inside one chunk, and a set of runs over many.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::geometry::{BLOCK, CHUNK_MAX};

const WORDS: usize = (CHUNK_MAX / BLOCK / 64) as usize;

/// Which 4 KiB blocks of one chunk are sent; the rest read as zero.
///
/// Fixed size on the wire (one bit a block, least significant first), so that a frame header has
/// one length for the whole session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockMap([u64; WORDS]);

impl BlockMap {
    /// No block is data.
    pub const EMPTY: BlockMap = BlockMap([0; WORDS]);

    /// Marks blocks `range` as data.
    ///
    /// # Panics
    /// When the range reaches past the largest chunk.
    pub fn set(&mut self, range: Range<usize>) {
        for block in range {
            self.0[block / 64] |= 1 << (block % 64);
        }
    }

    /// Whether block `index` is data.
    pub fn contains(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    /// Whether nothing is data.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    /// Whether any block of `range` is data.
    pub fn any(&self, mut range: Range<usize>) -> bool {
        range.any(|b| self.contains(b))
    }

    /// Maximal runs of data blocks as byte ranges inside a chunk of `len` bytes: the last run is
    /// cut at `len`. Blocks wholly past `len` give nothing.
    pub fn runs(&self, len: u32) -> Runs<'_> {
        Runs { map: self, len, next: 0 }
    }

    /// Bytes of data in a chunk of `len` bytes.
    pub fn data_bytes(&self, len: u32) -> u32 {
        self.runs(len).map(|r| r.end - r.start).sum()
    }

    /// Whether a bit is set for a block that starts at or past `len`.
    pub fn exceeds(&self, len: u32) -> bool {
        self.any(len.div_ceil(BLOCK) as usize..WORDS * 64)
    }

    /// Writes the first `out.len() * 8` bits.
    pub fn write(&self, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.0[i / 8].to_le_bytes()[i % 8];
        }
    }

    /// Reads what [`BlockMap::write`] wrote; at most 128 bytes are looked at.
    pub fn read(bytes: &[u8]) -> BlockMap {
        let mut map = BlockMap::EMPTY;
        for (i, byte) in bytes.iter().take(WORDS * 8).enumerate() {
            map.0[i / 8] |= u64::from(*byte) << (i % 8 * 8);
        }
        map
    }
}

/// Iterator of [`BlockMap::runs`].
#[derive(Debug)]
pub struct Runs<'a> {
    map: &'a BlockMap,
    len: u32,
    next: usize,
}

impl Iterator for Runs<'_> {
    type Item = Range<u32>;

    fn next(&mut self) -> Option<Range<u32>> {
        let blocks = self.len.div_ceil(BLOCK) as usize;
        let start = (self.next..blocks).find(|b| self.map.contains(*b))?;
        let end = (start..blocks).find(|b| !self.map.contains(*b)).unwrap_or(blocks);
        self.next = end;
        // Both are at most 1024 blocks, so the products stay below 2^22.
        Some(start as u32 * BLOCK..(end as u32 * BLOCK).min(self.len))
    }
}

/// A set of `u64` kept as maximal runs; memory grows with the number of gaps, not of members.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunSet {
    /// start → end (exclusive); runs neither touch nor overlap.
    runs: BTreeMap<u64, u64>,
}

impl RunSet {
    /// The empty set.
    pub fn new() -> RunSet {
        RunSet::default()
    }

    /// Adds `range` when no member of it is in the set yet; says whether it did.
    pub fn insert_new(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() || self.intersects(&range) {
            return range.is_empty();
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.runs.range(..start).next_back()
            && e == start
        {
            start = s;
        }
        if let Some(e) = self.runs.remove(&end) {
            end = e;
        }
        self.runs.insert(start, end);
        true
    }

    /// Removes all members below `end`; returns them as maximal runs.
    pub fn take_below(&mut self, end: u64) -> Vec<Range<u64>> {
        let above = self.runs.split_off(&end);
        let mut taken: Vec<_> =
            std::mem::replace(&mut self.runs, above).into_iter().map(|(s, e)| s..e).collect();
        if let Some(last) = taken.last_mut().filter(|last| last.end > end) {
            self.runs.insert(end, last.end);
            last.end = end;
        }
        taken
    }

    /// Whether any member lies in `range`.
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        self.runs.range(..range.end).next_back().is_some_and(|(_, &e)| e > range.start)
    }

    /// The members in `range`, as maximal runs of them.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.runs.range(..=range.start).next_back().map_or(range.start, |(s, _)| *s);
        let runs = self.runs.range(first..range.end.max(first));
        let cut = move |(s, e): (&u64, &u64)| (*s).max(range.start)..(*e).min(range.end);
        runs.map(cut).filter(|run| run.start < run.end)
    }

    /// Whether `value` is a member.
    pub fn contains(&self, value: u64) -> bool {
        self.intersects(&(value..value.saturating_add(1)))
    }

    /// The first value that is not a member, counted from 0.
    pub fn first_gap(&self) -> u64 {
        self.runs.get(&0).copied().unwrap_or(0)
    }

    /// Whether the set is exactly `0..end`.
    pub fn is_exactly(&self, end: u64) -> bool {
        if end == 0 { self.runs.is_empty() } else { self.runs.len() == 1 && self.first_gap() == end }
    }

    /// The maximal runs in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|(s, e)| *s..*e)
    }
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Data differs from zero in its first word nearly always; whole words let LLVM vectorise.
    let (words, tail) = bytes.as_chunks::<64>();
    words.iter().all(|w| w.iter().fold(0, |acc, b| acc | b) == 0) && tail.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_are_cut_at_the_tail() {
        let mut map = BlockMap::EMPTY;
        map.set(0..1);
        map.set(2..4);
        let runs: Vec<_> = map.runs(3 * BLOCK + 7).collect();
        assert_eq!(runs, [0..BLOCK, 2 * BLOCK..3 * BLOCK + 7]);
        assert_eq!(map.data_bytes(3 * BLOCK + 7), 2 * BLOCK + 7);
        assert!(!map.exceeds(3 * BLOCK + 7));
        assert!(map.exceeds(3 * BLOCK));
    }

    #[allow(clippy::single_range_in_vec_init)] // sets of one run, not vectors of its members
    #[test]
    fn what_lies_below_is_taken_and_cut() {
        let set = |runs: &[Range<u64>]| {
            let mut set = RunSet::new();
            runs.iter().for_each(|run| assert!(set.insert_new(run.clone())));
            set
        };
        for (end, taken, left) in [
            (0, vec![], vec![3..5, 8..12]),
            (4, vec![3..4], vec![4..5, 8..12]),
            (8, vec![3..5], vec![8..12]),
            (9, vec![3..5, 8..9], vec![9..12]),
            (99, vec![3..5, 8..12], vec![]),
        ] {
            let mut all = set(&[3..5, 8..12]);
            assert_eq!((all.take_below(end), all), (taken, set(&left)), "below {end}");
        }
    }

    proptest! {
        #[test]
        fn map_survives_the_wire(bits in proptest::collection::btree_set(0usize..1024, 0..1024)) {
            let mut map = BlockMap::EMPTY;
            for b in &bits { map.set(*b..*b + 1); }
            let mut wire = [0u8; 128];
            map.write(&mut wire);
            prop_assert_eq!(BlockMap::read(&wire), map);
            let back: BTreeSet<usize> = map.runs(CHUNK_MAX)
                .flat_map(|r| (r.start / BLOCK) as usize..(r.end / BLOCK) as usize).collect();
            prop_assert_eq!(back, bits);
        }

        #[test]
        fn run_set_is_a_set(ranges in proptest::collection::vec((0u64..200, 1u64..20), 0..60)) {
            let (mut runs, mut model) = (RunSet::new(), BTreeSet::new());
            for (start, len) in ranges {
                let range = start..start + len;
                let fresh = range.clone().all(|v| !model.contains(&v));
                prop_assert_eq!(runs.insert_new(range.clone()), fresh);
                if fresh { model.extend(range); }
            }
            for v in 0..230 { prop_assert_eq!(runs.contains(v), model.contains(&v)); }
            for range in [0..230, 50..51, 60..120, 7..7, 200..300] {
                let inside: Vec<u64> = runs.within(range.clone()).flatten().collect();
                prop_assert_eq!(inside, model.range(range).copied().collect::<Vec<_>>());
            }
            let gap = (0..).find(|v| !model.contains(v)).unwrap_or(0);
            prop_assert_eq!(runs.first_gap(), gap);
            let parts: Vec<_> = runs.iter().collect();
            prop_assert!(parts.windows(2).all(|w| w[0].end < w[1].start));
        }
    }
}
