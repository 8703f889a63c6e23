//! Reproducible bytes and numbers.

/// Fills `buffer` with what an image of `seed` holds at `offset`; any bytes are
/// incompressible and differ from those at every other offset.
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let mut stream = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    stream.set_position(offset);
    stream.fill(buffer);
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
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
        let mut whole = vec![0; 10_000];
        fill(7, 0, &mut whole);
        let mut part = vec![0; 333];
        fill(7, 4321, &mut part);
        assert_eq!(part, whole[4321..4321 + 333]);
        fill(8, 4321, &mut part);
        assert_ne!(part, whole[4321..4321 + 333]);
    }
}
