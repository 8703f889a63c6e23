//! Leaves of any chunk size, in any order, to granules: what outlives a job.
//!
//! Non-goal: keeping them. A granule is handed out once, as soon as all of its leaves are known.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::{Cv, merge, zero_leaf};
use crate::extents::RunSet;
use crate::geometry::{ChunkSize, GRANULE};

/// What is known of some granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The first of them.
    pub start: u64,
    /// What they hold.
    pub content: Content,
}

/// What granules hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Content {
    /// One granule of data, with its chaining value.
    Data(Cv),
    /// So many granules read as zero.
    Zero(u64),
}

impl Run {
    /// How many granules.
    pub fn count(&self) -> u64 {
        match self.content {
            Content::Data(_) => 1,
            Content::Zero(count) => count,
        }
    }

    /// Which granules.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.count())
    }
}

/// How many granules an image of `size` bytes has.
pub fn count(size: u64) -> u64 {
    size.div_ceil(u64::from(GRANULE))
}

/// Of a set of granules, those that make up whole chunks.
pub fn covered(set: &RunSet, size: u64, chunk: ChunkSize) -> RunSet {
    let per = (u64::from(chunk.bytes()) / u64::from(GRANULE)).max(1);
    let total = count(size);
    let mut covered = RunSet::new();
    for run in set.iter() {
        let start = run.start.next_multiple_of(per);
        let end = if run.end >= total { total } else { run.end / per * per };
        covered.insert_new(start.min(end)..end);
    }
    covered
}

/// The chunks that a set from [`covered`] makes up, as maximal runs.
pub fn chunks(covered: &RunSet, size: u64, chunk: ChunkSize) -> impl Iterator<Item = Range<u64>> {
    let bytes = u64::from(chunk.bytes());
    let byte = move |granule: u64| granule.saturating_mul(u64::from(GRANULE)).min(size);
    covered.iter().map(move |run| byte(run.start) / bytes..byte(run.end).div_ceil(bytes))
}

#[derive(Clone, Copy, Debug)]
enum Leaf {
    Data(Cv),
    Zero,
}

/// Puts the leaves of one image together.
#[derive(Debug)]
pub struct Granules {
    size: u64,
    leaf: u64,
    /// Leaves in a full granule.
    per: u64,
    /// Leaves of the image.
    total: u64,
    /// Granules of which some leaves are known.
    open: BTreeMap<u64, Vec<Option<Leaf>>>,
    /// Granules that were handed out.
    done: RunSet,
}

impl Granules {
    /// For an image of `size` bytes that is sent in chunks of `chunk`.
    pub fn new(size: u64, chunk: ChunkSize) -> Granules {
        let leaf = u64::from(chunk.leaf());
        Granules {
            size,
            leaf,
            per: u64::from(GRANULE) / leaf,
            total: size.div_ceil(leaf),
            open: BTreeMap::new(),
            done: RunSet::new(),
        }
    }

    /// Leaf `index` holds data with this hash. A leaf told twice keeps its first hash.
    pub fn data(&mut self, index: u64, cv: Cv) -> Option<Run> {
        self.one(index, Leaf::Data(cv))
    }

    /// Leaves `index..index + count` read as zero: the granules that this completes.
    pub fn zeros(&mut self, index: u64, count: u64) -> Vec<Run> {
        let (mut at, end) = (index, index.saturating_add(count).min(self.total));
        let mut runs = Vec::new();
        while at < end {
            let granule = at / self.per;
            // The image's last granule may have fewer leaves.
            let whole = if end == self.total { self.total.div_ceil(self.per) } else { end / self.per };
            if at.is_multiple_of(self.per) && granule < whole && self.done.insert_new(granule..whole) {
                self.open.retain(|g, _| !(granule..whole).contains(g));
                runs.push(Run { start: granule, content: Content::Zero(whole - granule) });
                at = whole * self.per;
            } else {
                runs.extend(self.one(at, Leaf::Zero));
                at += 1;
            }
        }
        runs
    }

    /// Granules that are known from elsewhere: leaves of them change nothing any more.
    pub fn known(&mut self, run: &Run) {
        run.range().for_each(|granule| drop(self.open.remove(&granule)));
        self.done.insert_new(run.range());
    }

    fn one(&mut self, index: u64, leaf: Leaf) -> Option<Run> {
        let granule = index / self.per;
        if index >= self.total || self.done.contains(granule) {
            return None;
        }
        let first = granule * self.per;
        let leaves = self.per.min(self.total - first) as usize; // at most 16
        let slots = self.open.entry(granule).or_insert_with(|| vec![None; leaves]);
        slots[(index - first) as usize].get_or_insert(leaf);
        let known: Vec<Leaf> = slots.iter().copied().collect::<Option<_>>()?;
        self.open.remove(&granule);
        self.done.insert_new(granule..granule + 1);
        Some(Run { start: granule, content: self.content(first, &known) })
    }

    fn content(&self, first: u64, leaves: &[Leaf]) -> Content {
        if leaves.iter().all(|leaf| matches!(leaf, Leaf::Zero)) {
            return Content::Zero(1);
        }
        let cv = |(index, leaf): (u64, &Leaf)| match leaf {
            Leaf::Data(cv) => *cv,
            Leaf::Zero => {
                let offset = index * self.leaf;
                zero_leaf(offset, self.leaf.min(self.size - offset), self.size)
            }
        };
        let cvs: Vec<Cv> = (first..).zip(leaves).map(cv).collect();
        Content::Data(merge(&cvs, self.size <= u64::from(GRANULE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaves::leaf_hash;
    use crate::leaves::tests::noise;
    use proptest::prelude::*;

    const G: usize = GRANULE as usize;

    /// The granules of `bytes`, each with its hash, merged.
    fn plain(bytes: &[u8]) -> Vec<Run> {
        let size = bytes.len() as u64;
        let granule = |(i, part): (u64, &[u8])| {
            let zero = part.iter().all(|b| *b == 0);
            let cv = leaf_hash(i * u64::from(GRANULE), part, size);
            Run { start: i, content: if zero { Content::Zero(1) } else { Content::Data(cv) } }
        };
        (0..).zip(bytes.chunks(G)).map(granule).collect()
    }

    fn single(runs: &[Run]) -> Vec<Run> {
        let mut all: Vec<Run> = Vec::new();
        for run in runs {
            match run.content {
                Content::Data(_) => all.push(*run),
                Content::Zero(count) => all.extend(
                    (run.start..run.start + count).map(|start| Run { start, content: Content::Zero(1) }),
                ),
            }
        }
        all.sort_by_key(|run| run.start);
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Each granule comes once, with the hash that it has alone, in whatever order and size its
        /// leaves are told.
        #[test]
        fn granules_do_not_depend_on_chunk_or_order(
            size in prop_oneof![1usize..3 * G, Just(G), Just(2 * G)],
            chunk in prop_oneof![Just("64K"), Just("256K"), Just("1M"), Just("4M")],
            holes in proptest::collection::vec((0usize..3 * G, 0usize..G), 0..4),
            turn in any::<u64>(),
        ) {
            let mut bytes = noise(size, 5);
            for (at, len) in holes {
                let end = (at + len).min(size);
                bytes[at.min(end)..end].fill(0);
            }
            let chunk: ChunkSize = chunk.parse().expect("valid");
            let leaf = chunk.leaf() as usize;
            let mut order: Vec<usize> = (0..size.div_ceil(leaf)).collect();
            order.sort_by_key(|i| (*i as u64).wrapping_add(turn).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut granules = Granules::new(size as u64, chunk);
            let mut runs = Vec::new();
            for i in order.iter().chain(&order) {
                let part = &bytes[i * leaf..((i + 1) * leaf).min(size)];
                if part.iter().all(|b| *b == 0) {
                    runs.extend(granules.zeros(*i as u64, 1));
                } else {
                    runs.extend(granules.data(*i as u64, leaf_hash((i * leaf) as u64, part, size as u64)));
                }
            }
            prop_assert_eq!(single(&runs), plain(&bytes));
            prop_assert!(granules.open.is_empty());
        }
    }

    #[allow(clippy::single_range_in_vec_init)] // sets of one run, not vectors of its members
    #[test]
    fn only_whole_chunks_are_covered() {
        let set = |runs: &[Range<u64>]| {
            let mut set = RunSet::new();
            runs.iter().for_each(|run| assert!(set.insert_new(run.clone())));
            set
        };
        let size = 10 * u64::from(GRANULE) + 1;
        let of = |runs: &[Range<u64>], chunk: &str| {
            let chunk: ChunkSize = chunk.parse().expect("valid");
            let covered = covered(&set(runs), size, chunk);
            let chunks: Vec<_> = chunks(&covered, size, chunk).collect();
            (covered.iter().collect::<Vec<_>>(), chunks)
        };
        assert_eq!(of(&[1..3, 9..11], "1M"), (vec![1..3, 9..11], vec![1..3, 9..11]));
        assert_eq!(of(&[1..3, 10..11], "512K"), (vec![1..3, 10..11], vec![2..6, 20..21]));
        assert_eq!(of(&[1..3, 5..11], "4M"), (vec![8..11], vec![2..3]));
        assert_eq!(of(&[1..9], "2M"), (vec![2..8], vec![1..4]));
        assert_eq!(of(&[1..2], "2M"), (vec![], vec![]));
    }

    #[test]
    fn long_holes_are_one_run() {
        let size = 9 * u64::from(GRANULE) + 5;
        let mut granules = Granules::new(size, "64K".parse().expect("valid"));
        let runs = granules.zeros(8, u64::MAX);
        // The first granule lacks its first half.
        assert_eq!(runs, [Run { start: 1, content: Content::Zero(9) }]);
        assert_eq!(granules.zeros(0, 8), [Run { start: 0, content: Content::Zero(1) }]);
        assert_eq!(granules.zeros(0, 8), []);
    }

    #[test]
    fn what_is_known_is_not_told_again() {
        let mut granules = Granules::new(4 << 20, ChunkSize::DEFAULT);
        granules.known(&Run { start: 1, content: Content::Zero(2) });
        assert_eq!(granules.data(1, [1; 32]), None);
        assert_eq!(granules.data(3, [3; 32]), Some(Run { start: 3, content: Content::Data([3; 32]) }));
        assert_eq!(granules.zeros(0, 4), [Run { start: 0, content: Content::Zero(1) }]);
    }
}
