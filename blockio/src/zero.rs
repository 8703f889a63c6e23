//! Making a range read as zero.
//!
//! Goal: afterwards every byte of the range reads as zero, and its space is free where the file
//! system can do that. Invariant: nothing is assumed about what was there, and a file system that
//! refuses one way is asked the next: PUNCH_HOLE, ZERO_RANGE (`fallocate(2)`), writing.
//!
//! On a device ZERO_RANGE is the ioctl BLKZEROOUT in a form that io_uring takes too (the kernel's
//! `blkdev_fallocate`, `block/fops.c`): the drive writes zeros, or the kernel does where the drive
//! has no command for it. PUNCH_HOLE is left out there: it lets the drive discard, and what discarded
//! blocks read as is the drive's word.

use crate::engine::Engine;
use crate::error::Error;
use crate::image::{Feature, Image};
use crate::pool::Pool;
use std::ops::Range;

/// Bytes of zeros per write.
const BLOCK_OF_ZEROS: usize = 1 << 20;
/// Bytes that a device is told to zero at once: one that has no command for it writes them all
/// before it answers.
const DEVICE_PIECE: u64 = 64 << 20;

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
        if image.sectors().is_some() {
            return self.zero_device(image, range).await;
        }
        for feature in [Feature::Punch, Feature::ZeroRange] {
            // What a refusal midway left undone is done again from the start: it costs little.
            if image.has(feature) && self.fallocate(image, feature, range.clone()).await? {
                return Ok(());
            }
        }
        self.write_zeros(image, range).await
    }

    /// Whole blocks by ZERO_RANGE, which takes nothing else; the rest, and what the device refuses,
    /// by writing. The page cache reads, changes and writes the sectors of which only a part counts.
    async fn zero_device(&self, image: &Image, range: Range<u64>) -> Result<(), Error> {
        let align = image.align() as u64;
        let whole = range.start.next_multiple_of(align)..range.end / align * align;
        if whole.is_empty() {
            return self.write_zeros(image, range).await;
        }
        self.write_zeros(image, range.start..whole.start).await?;
        let mut at = whole.start;
        while at < whole.end {
            let piece = at..whole.end.min(at.saturating_add(DEVICE_PIECE));
            at = piece.end;
            if !self.fallocate(image, Feature::ZeroRange, piece.clone()).await? {
                self.write_zeros(image, piece).await?;
            }
        }
        self.write_zeros(image, whole.end..range.end).await
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
