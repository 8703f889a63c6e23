//! Making a range read as zero.
//!
//! Goal: afterwards every byte of the range reads as zero, and its space is free where the file
//! system can do that. Invariant: nothing is assumed about what was there, and a file system that
//! refuses one way is asked the next: PUNCH_HOLE, ZERO_RANGE (`fallocate(2)`), writing.

use crate::engine::Engine;
use crate::error::Error;
use crate::image::{Feature, Image};
use crate::pool::Pool;
use std::ops::Range;

/// Bytes of zeros per write.
const BLOCK_OF_ZEROS: usize = 1 << 20;

impl Engine {
    /// Makes the bytes of `range` read as zero. The size stays: what lies past [`Image::size`] is
    /// left out. When it fails, or is dropped, part of the range may be zero already.
    ///
    /// # Errors
    ///
    /// Whatever `fallocate(2)` or `write(2)` say, with the offset.
    pub async fn zero(&self, image: &Image, range: Range<u64>) -> Result<(), Error> {
        let range = range.start..range.end.min(image.size());
        if range.is_empty() {
            return Ok(());
        }
        for feature in [Feature::Punch, Feature::ZeroRange] {
            // What a refusal midway left undone is done again from the start: it costs little.
            if image.has(feature) && self.fallocate(image, feature, range.clone()).await? {
                return Ok(());
            }
        }
        self.write_zeros(image, range).await
    }

    async fn write_zeros(&self, image: &Image, range: Range<u64>) -> Result<(), Error> {
        let pool = match self.zeros().get() {
            Some(pool) => pool,
            None => {
                // A slot of its own: who waits here for the payload's pool could wait for
                // buffers that are held by those who wait for this. Fresh memory is zero.
                let pool = Pool::new(1, BLOCK_OF_ZEROS)?;
                self.zeros().get_or_init(|| pool)
            }
        };
        let mut buffer = pool.take().await;
        let block = BLOCK_OF_ZEROS as u64;
        let mut at = range.start;
        while at < range.end {
            // Up to a multiple of the block first, so that the rest is aligned.
            let end = range.end.min((at / block + 1).saturating_mul(block));
            let len = usize::try_from(end - at).unwrap_or(BLOCK_OF_ZEROS);
            // Written from where it will lie in its block: then what is whole goes direct.
            let skew = usize::try_from(at % block).unwrap_or(0);
            let whole = std::iter::once(skew..skew + len).collect();
            let base = at - skew as u64;
            let (back, result) = self.write(image, buffer, base, whole).await;
            buffer = back;
            result?;
            at = end;
        }
        Ok(())
    }
}
