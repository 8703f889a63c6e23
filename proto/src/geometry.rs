//! The fixed sizes of the protocol: block, granule, chunk, leaf.
//!
//! A **block** (4 KiB) is the unit of "is there data here", a **chunk** the unit of work and of
//! the wire, a **granule** (1 MiB) the unit of hashes that outlive a session. Chunks may be
//! smaller or larger than a granule, so the hash that travels is the **leaf**: the smaller of
//! the two. Leaves merge into granules without reading the data again.

use std::fmt;
use std::str::FromStr;

/// Unit of the data map inside a chunk, bytes. The block of ext4, XFS and of 4Kn disks.
pub const BLOCK: u32 = 4096;
/// Unit of hash lists, ledger and digests, bytes; independent of the chunk.
pub const GRANULE: u32 = 1 << 20;
/// Smallest chunk, bytes.
pub const CHUNK_MIN: u32 = 64 << 10;
/// Largest chunk, bytes.
pub const CHUNK_MAX: u32 = 4 << 20;
/// Largest image that the protocol describes, bytes (8 EiB - 1, the kernel's `loff_t`).
pub const IMAGE_MAX: u64 = i64::MAX as u64;

/// A valid chunk size: a power of two from 64 KiB to 4 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// The default: 1 MiB, one granule.
    pub const DEFAULT: ChunkSize = ChunkSize(1 << 20);

    /// Checks that `bytes` is a power of two from [`CHUNK_MIN`] to [`CHUNK_MAX`].
    ///
    /// # Errors
    /// The sentence to show when it is not.
    pub fn new(bytes: u64) -> Result<ChunkSize, String> {
        match u32::try_from(bytes) {
            Ok(b) if b.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(&b) => Ok(ChunkSize(b)),
            _ => Err(format!("a chunk of {bytes} bytes is not possible: give a power of two from 64K to 4M")),
        }
    }

    /// Bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// Bytes of one leaf: the smaller of chunk and granule.
    pub fn leaf(self) -> u32 {
        self.0.min(GRANULE)
    }

    /// Leaves in a full chunk: 1 up to 1 MiB, then 2 or 4.
    pub fn leaves(self) -> usize {
        (self.0 / self.leaf()) as usize
    }

    /// Blocks in a full chunk: 16 to 1024.
    pub fn blocks(self) -> usize {
        (self.0 / BLOCK) as usize
    }

    /// How many chunks an image of `size` bytes has.
    pub fn count(self, size: u64) -> u64 {
        size.div_ceil(u64::from(self.0))
    }

    /// Bytes of the image that fall into chunk `index`: a full chunk but for the last; 0 past the end.
    pub fn len_of(self, index: u64, size: u64) -> u32 {
        let start = index.saturating_mul(u64::from(self.0));
        // At most one chunk, so it fits.
        size.saturating_sub(start).min(u64::from(self.0)) as u32
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b >= 1 << 20 => write!(f, "{}M", b >> 20),
            b => write!(f, "{}K", b >> 10),
        }
    }
}

impl FromStr for ChunkSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).and_then(ChunkSize::new)
    }
}

/// `4G`, `512M`, `64K` or bytes; powers of 1024.
///
/// # Errors
/// A sentence.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size: write 512M or 2G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let scale = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    match number.checked_mul(1 << scale) {
        Some(0) | None => Err(wrong()),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_lengths() {
        let c = ChunkSize::DEFAULT;
        assert_eq!(c.count(0), 0);
        assert_eq!(c.count(1), 1);
        assert_eq!(c.len_of(0, 1), 1);
        assert_eq!(c.len_of(1, (1 << 20) + 5), 5);
        assert_eq!(c.len_of(2, (1 << 20) + 5), 0);
        assert_eq!(c.len_of(u64::MAX, IMAGE_MAX), 0);
    }

    #[test]
    fn only_powers_of_two_in_range() {
        for ok in ["64K", "256K", "1M", "4M", "1048576"] {
            assert!(ok.parse::<ChunkSize>().is_ok(), "{ok}");
        }
        for bad in ["0", "32K", "8M", "3M", "1G", "x", "", "-1", "99999999999999999999"] {
            assert!(bad.parse::<ChunkSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1024"), Ok(1024));
        for bad in ["", "0", "G", "1.5G", "-1", "99999999T", "5X"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
