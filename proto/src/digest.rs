//! The two whole-image digests, built from the hashes of granules that arrive in any order.
//!
//! - **tree**, always: BLAKE3 over a 24-byte head (`"vmftree\x01"`, image size, granule; little
//!   endian) and the canonical maximal runs of granules, each closed by its kind and length: a
//!   data run is its granules' chaining values, then `1` and the count (`u64`); a run of granules
//!   that read as zero is `0` and the count. Written zeros and holes encode alike, and the cost
//!   grows with the data, not with the size. (The close comes last so that runs can be hashed
//!   while they grow; parsed from the end the text is unambiguous.)
//! - **b3**: what `b3sum IMAGE` prints, by merging the chaining values up BLAKE3's own tree
//!   (section 2.4 of the BLAKE3 paper; the crate's `hazmat`). Zeros must be hashed for it, since
//!   a chaining value depends on the offset, so it has a limit.
//!
//! Non-goal: keeping hash lists. Granules are folded in order as the front grows; memory is what
//! has arrived out of order.

use std::collections::BTreeMap;

use blake3::Hasher;
use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};

use crate::geometry::GRANULE;
use crate::granules::{self, Content, Run};
use crate::leaves::leaf_hash;

/// A BLAKE3 chaining value: the hash of one subtree, not yet of a whole input.
pub type Cv = [u8; 32];

/// Zeros hashed for `b3` before it is given up unless asked for, bytes: about 10 s of one core.
pub const B3_ZERO_LIMIT: u64 = 64 << 30;

static ZEROS: [u8; GRANULE as usize] = [0; GRANULE as usize];

pub(crate) fn zero_leaf(offset: u64, len: u64, size: u64) -> Cv {
    // A leaf is at most a granule.
    leaf_hash(offset, &ZEROS[..len as usize], size)
}

/// Merges the hashes of neighbours, left to right, as BLAKE3's tree does: the left side is the
/// largest power of two that leaves something for the right.
pub(crate) fn merge(parts: &[Cv], root: bool) -> Cv {
    let [only] = parts else {
        let left = parts.len().next_power_of_two() / 2;
        let (l, r) = (merge(&parts[..left], false), merge(&parts[left..], false));
        return join(&l, &r, root);
    };
    *only
}

fn join(left: &Cv, right: &Cv, root: bool) -> Cv {
    if root {
        *merge_subtrees_root(left, right, Mode::Hash).as_bytes()
    } else {
        merge_subtrees_non_root(left, right, Mode::Hash)
    }
}

/// Both digests of one image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Digests {
    /// The tree digest.
    pub tree: [u8; 32],
    /// What `b3sum` prints; `None` when more zeros than the limit would have to be hashed.
    pub b3: Option<[u8; 32]>,
}

/// Lower-case hex, as `b3sum` prints it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Collects the granules of one image, in any order, into its [`Digests`].
#[derive(Debug)]
pub struct ImageDigest {
    size: u64,
    total: u64,
    next: u64,
    ahead: BTreeMap<u64, Content>,
    tree: Tree,
    b3: Option<B3>,
}

impl ImageDigest {
    /// For an image of `size` bytes. `b3_zero_limit` bounds the zeros (bytes) hashed for the `b3`
    /// digest; 0 asks for the tree digest alone.
    pub fn new(size: u64, b3_zero_limit: u64) -> ImageDigest {
        ImageDigest {
            size,
            total: granules::count(size),
            next: 0,
            ahead: BTreeMap::new(),
            tree: Tree::new(size),
            b3: (b3_zero_limit > 0).then(|| B3 { zero_left: b3_zero_limit, ..B3::default() }),
        }
    }

    /// At least so many whole granules will turn out to be zero: when that is past its limit, `b3`
    /// is given up now instead of after hashing zeros up to the limit.
    pub fn expect_zeros(&mut self, granules: u64) {
        let bytes = granules.saturating_mul(u64::from(GRANULE));
        if self.b3.as_ref().is_some_and(|b3| bytes > b3.zero_left) {
            self.b3 = None;
        }
    }

    /// Takes in what is known of some granules; each is told once.
    pub fn add(&mut self, run: Run) {
        if run.start < self.next {
            return;
        }
        self.ahead.entry(run.start).or_insert(run.content);
        while let Some(content) = self.ahead.remove(&self.next) {
            match content {
                Content::Data(cv) => {
                    self.tree.data(&cv);
                    if let Some(b3) = &mut self.b3 {
                        b3.push(cv);
                    }
                    self.next += 1;
                }
                Content::Zero(count) => {
                    let count = count.min(self.total - self.next);
                    self.tree.zeros(count);
                    self.b3_zeros(count);
                    self.next += count;
                }
            }
        }
    }

    fn b3_zeros(&mut self, granules: u64) {
        let Some(b3) = &mut self.b3 else { return };
        let granule = u64::from(GRANULE);
        if granules.saturating_mul(granule) > b3.zero_left {
            self.b3 = None;
            return;
        }
        b3.zero_left -= granules * granule;
        for index in self.next..self.next + granules {
            let offset = index * granule;
            // One granule is one subtree whatever the leaf, so it is hashed whole.
            b3.push(zero_leaf(offset, granule.min(self.size - offset), self.size));
        }
    }

    /// The digests, once every granule was told; `None` while some are missing.
    pub fn finish(mut self) -> Option<Digests> {
        if self.next != self.total {
            return None;
        }
        self.tree.close();
        Some(Digests { tree: *self.tree.hasher.finalize().as_bytes(), b3: self.b3.map(B3::finish) })
    }
}

/// Streams the canonical runs into one hasher.
#[derive(Debug)]
struct Tree {
    hasher: Hasher,
    data: bool,
    run: u64,
}

impl Tree {
    fn new(size: u64) -> Tree {
        let mut hasher = Hasher::new();
        hasher.update(b"vmftree\x01");
        hasher.update(&size.to_le_bytes());
        hasher.update(&u64::from(GRANULE).to_le_bytes());
        Tree { hasher, data: false, run: 0 }
    }

    fn data(&mut self, cv: &Cv) {
        self.grow(true, 1);
        self.hasher.update(cv);
    }

    fn zeros(&mut self, count: u64) {
        self.grow(false, count);
    }

    fn grow(&mut self, data: bool, count: u64) {
        if self.data != data {
            self.close();
            self.data = data;
        }
        self.run += count;
    }

    fn close(&mut self) {
        if self.run > 0 {
            self.hasher.update(&[u8::from(self.data)]);
            self.hasher.update(&self.run.to_le_bytes());
            self.run = 0;
        }
    }
}

/// BLAKE3's binary counter of subtrees, over granules.
#[derive(Debug, Default)]
struct B3 {
    stack: Vec<Cv>,
    count: u64,
    zero_left: u64,
}

impl B3 {
    fn push(&mut self, cv: Cv) {
        // Merging waits for the next granule: until then the last merge might be the root's.
        while self.stack.len() > self.count.count_ones() as usize {
            self.merge_top(false);
        }
        self.stack.push(cv);
        self.count += 1;
    }

    fn merge_top(&mut self, root: bool) {
        if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
            self.stack.push(join(&left, &right, root));
        }
    }

    fn finish(mut self) -> [u8; 32] {
        while self.stack.len() > 1 {
            self.merge_top(self.stack.len() == 2);
        }
        self.stack.pop().unwrap_or_else(|| *blake3::hash(&[]).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::ChunkSize;
    use crate::granules::Granules;
    use crate::leaves::tests::noise;
    use proptest::prelude::*;

    const G: usize = GRANULE as usize;

    /// Folds `bytes` leaf by leaf in the order that `order` gives.
    fn digest(bytes: &[u8], chunk: ChunkSize, order: impl Fn(&mut Vec<u64>)) -> Digests {
        let size = bytes.len() as u64;
        let mut d = ImageDigest::new(size, u64::MAX);
        let mut granules = Granules::new(size, chunk);
        let leaf = u64::from(chunk.leaf());
        let mut indices: Vec<u64> = (0..size.div_ceil(leaf)).collect();
        order(&mut indices);
        for i in indices {
            let part = &bytes[(i * leaf) as usize..((i + 1) * leaf).min(size) as usize];
            if part.iter().all(|b| *b == 0) {
                granules.zeros(i, 1).into_iter().for_each(|run| d.add(run));
            } else if let Some(run) = granules.data(i, leaf_hash(i * leaf, part, size)) {
                d.add(run);
            }
        }
        d.finish().expect("every leaf was told")
    }

    #[test]
    fn b3_is_blake3_for_every_shape_of_tree() {
        for size in
            [0, 1, 511, 1024, 65535, 65536, 65537, G - 1, G, G + 1, 2 * G, 3 * G + 5, 7 * G, 9 * G + 77]
        {
            let bytes = noise(size, size as u64);
            for chunk in ["64K", "256K", "1M", "4M"] {
                let d = digest(&bytes, chunk.parse().expect("valid"), |v| v.reverse());
                assert_eq!(d.b3, Some(*blake3::hash(&bytes).as_bytes()), "{size} bytes in {chunk}");
            }
        }
    }

    #[test]
    fn digests_do_not_depend_on_chunk_or_order() {
        let mut bytes = noise(5 * G + 123, 1);
        bytes[G..2 * G].fill(0);
        bytes[3 * G + 70_000..3 * G + 400_000].fill(0);
        let want = digest(&bytes, ChunkSize::DEFAULT, |_| ());
        assert_eq!(want.b3, Some(*blake3::hash(&bytes).as_bytes()));
        for chunk in ["64K", "128K", "512K", "2M"] {
            let chunk: ChunkSize = chunk.parse().expect("valid");
            assert_eq!(digest(&bytes, chunk, |_| ()), want);
            assert_eq!(digest(&bytes, chunk, |v| v.sort_by_key(|i| i.wrapping_mul(0x9E37_79B9) % 97)), want);
        }
    }

    #[test]
    fn holes_cost_nothing_and_b3_is_given_up_past_its_limit() {
        let size = 1u64 << 50;
        let mut d = ImageDigest::new(size, B3_ZERO_LIMIT);
        d.add(Run { start: 1, content: Content::Zero((size >> 20) - 1) });
        d.add(Run { start: 0, content: Content::Data(leaf_hash(0, &noise(G, 3), size)) });
        let d = d.finish().expect("complete");
        assert_eq!(d.b3, None);
        assert_eq!(hex(&d.tree).len(), 64);
    }

    #[test]
    fn b3_past_its_limit_is_given_up_before_anything_is_hashed() {
        for (expected, given_up) in [(3, false), (4, true)] {
            let mut d = ImageDigest::new(9 << 20, 3 << 20);
            d.expect_zeros(expected);
            assert_eq!(d.b3.is_none(), given_up);
        }
    }

    #[test]
    fn incomplete_has_no_digest() {
        let mut d = ImageDigest::new(3 * GRANULE as u64, 0);
        d.add(Run { start: 0, content: Content::Zero(1) });
        d.add(Run { start: 2, content: Content::Zero(1) });
        assert_eq!(d.finish(), None);
    }

    /// Golden: fixed for wire version 1; a change here is a new version of the digest.
    #[test]
    fn golden_tree() {
        let mut bytes = vec![0u8; 4 * G + 9];
        bytes[G..G + 4].copy_from_slice(b"data");
        let d = digest(&bytes, ChunkSize::DEFAULT, |_| ());
        assert_eq!(hex(&d.tree), include_str!("../tests/golden/tree.hex").trim());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn one_flipped_bit_changes_both(at in 0usize..3 * G + 50, bit in 0u8..8) {
            let mut bytes = noise(3 * G + 50, 9);
            bytes[G..2 * G].fill(0);
            let before = digest(&bytes, ChunkSize::DEFAULT, |_| ());
            bytes[at] ^= 1 << bit;
            let after = digest(&bytes, ChunkSize::DEFAULT, |_| ());
            prop_assert_ne!(before.tree, after.tree);
            prop_assert_ne!(before.b3, after.b3);
        }
    }
}
