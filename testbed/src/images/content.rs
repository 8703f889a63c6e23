//! Reproducible bytes and numbers.

/// Distance between the states of two neighbouring numbers (2^64 / golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of one number.
const WORD: usize = 8;

/// Fills `buffer` with what an image of `seed` holds at `offset`: bytes that do
/// not compress, and no block of which comes twice.
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let base = mix(seed.wrapping_add(STEP));
    let word = |index: u64| mix(base.wrapping_add(index.wrapping_mul(STEP))).to_le_bytes();
    let first = offset / WORD as u64;
    // At most seven bytes, the rest of a word that begins before `offset`.
    let skipped = offset.to_le_bytes()[0] as usize % WORD;
    let (head, body) = if skipped == 0 {
        buffer.split_at_mut(0)
    } else {
        buffer.split_at_mut(buffer.len().min(WORD - skipped))
    };
    head.copy_from_slice(&word(first)[skipped..skipped + head.len()]);
    let mut index = first + u64::from(skipped > 0);
    let mut whole = body.chunks_exact_mut(WORD);
    for piece in &mut whole {
        piece.copy_from_slice(&word(index));
        index += 1;
    }
    let tail = whole.into_remainder();
    tail.copy_from_slice(&word(index)[..tail.len()]);
}

/// A bijection that makes neighbours unlike (the finisher of splitmix64).
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A small generator of well-mixed numbers (splitmix64); not for secrets.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The series that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number from 0 up to, not including, `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.any().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let mut whole = vec![0; 2000];
        fill(7, 1000, &mut whole);
        for start in 0..20 {
            for length in [0, 1, 3, 7, 8, 9, 16, 333] {
                let mut part = vec![0; length];
                fill(7, 1000 + start as u64, &mut part);
                assert_eq!(part, whole[start..start + length], "{length} from {start}");
            }
        }
        let mut other = vec![0; 2000];
        fill(8, 1000, &mut other);
        assert_ne!(other, whole);
    }

    #[test]
    fn no_word_is_zero_or_repeated_nearby() {
        let mut bytes = vec![0; 1 << 20];
        fill(0, 0, &mut bytes);
        let mut words: Vec<_> = bytes.chunks_exact(WORD).collect();
        assert!(words.iter().all(|word| *word != [0; WORD]));
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
