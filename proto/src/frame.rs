//! The header in front of every frame on a data lane.
//!
//! One fixed length per session (it depends on the chunk size alone), so that a receiver reads a
//! header in one piece and the payload straight into its buffer. Little endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0-1 | magic `vF` |
//! | 2 | kind: 1 data, 2 zero run, 3 end of lane, 4 kept: the destination has it already |
//! | 3 | flags: bit 0 compressed (version 1 sends 0) |
//! | 4-7 | job epoch |
//! | 8-15 | sequence on this lane, from 0 without gaps |
//! | 16-19 | image, index into the manifest |
//! | 20-23 | ahead: chunks of dense data that follow this one (a hint for preallocation) |
//! | 24-31 | chunk index |
//! | 32-39 | count of chunks: 1 for data, 1.. for zeros (kept or not), 0 for end |
//! | 40-43 | raw length, bytes: data in the chunk's map |
//! | 44-47 | wire length, bytes: payload behind the header |
//! | 48-63 | reserved, zero |
//! | 64.. | map: one bit per 4 KiB block of a chunk |
//! | .. | one BLAKE3 chaining value per leaf of a chunk (32 bytes each), zero where a leaf has no data |

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::digest::Cv;
use crate::extents::BlockMap;
use crate::geometry::{BLOCK, ChunkSize};

const MAGIC: [u8; 2] = *b"vF";
const FIXED: usize = 64;
const KIND_DATA: u8 = 1;
const KIND_ZERO: u8 = 2;
const KIND_END: u8 = 3;
const KIND_KEEP: u8 = 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    magic: [u8; 2],
    kind: u8,
    flags: u8,
    epoch: U32,
    seq: U64,
    image: U32,
    ahead: U32,
    chunk: U64,
    count: U64,
    raw_len: U32,
    wire_len: U32,
    reserved: [u8; 16],
}

/// What a frame says about its image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Data of one chunk: the payload is the map's runs, one behind the other.
    Data {
        /// Chunk index.
        chunk: u64,
        /// Chunks of dense data known to follow.
        ahead: u32,
        /// Which blocks travel.
        map: BlockMap,
        /// Data bytes in the map.
        raw_len: u32,
        /// Payload bytes behind the header.
        wire_len: u32,
        /// One hash per leaf; of leaves without data all zero.
        leaves: Vec<Cv>,
    },
    /// `count` chunks from `chunk` on read as zero; no payload.
    Zero {
        /// First chunk.
        chunk: u64,
        /// How many.
        count: u64,
    },
    /// The destination holds this already, as it said: nothing is written, no payload.
    Keep {
        /// First chunk.
        chunk: u64,
        /// How many: 1 where they hold data.
        count: u64,
        /// One hash per leaf; of leaves without data all zero. Empty: all of it reads as zero.
        leaves: Vec<Cv>,
    },
    /// Nothing more comes on this lane.
    End,
}

/// One frame header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The job's attempt; frames of an earlier one are dropped.
    pub epoch: u32,
    /// Sequence on this lane.
    pub seq: u64,
    /// Index into the manifest.
    pub image: u32,
    /// The rest.
    pub body: Body,
}

/// Why a header is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeaderError {
    /// The magic or a reserved field is wrong: not our protocol, or damaged.
    #[error("not a frame header")]
    NotAHeader,
    /// A kind or flag of a later version.
    #[error("frame of an unknown kind {0}")]
    UnknownKind(u8),
    /// Lengths, map and hashes contradict each other.
    #[error("frame lengths do not agree with its map")]
    Inconsistent,
}

/// Length of a header in a session of this chunk size, bytes.
pub fn header_len(chunk: ChunkSize) -> usize {
    FIXED + chunk.blocks() / 8 + 32 * chunk.leaves()
}

/// Longest header of any session, bytes.
pub const HEADER_MAX: usize = FIXED + 128 + 128;

impl Header {
    /// Writes the header into `out`, whose length is [`header_len`].
    ///
    /// # Panics
    /// When `out` has another length or a data frame has more leaves than the chunk.
    pub fn encode(&self, chunk: ChunkSize, out: &mut [u8]) {
        assert_eq!(out.len(), header_len(chunk), "one header length per session");
        out.fill(0);
        let mut fixed = Fixed {
            magic: MAGIC,
            kind: KIND_END,
            flags: 0,
            epoch: self.epoch.into(),
            seq: self.seq.into(),
            image: self.image.into(),
            ahead: 0.into(),
            chunk: 0.into(),
            count: 0.into(),
            raw_len: 0.into(),
            wire_len: 0.into(),
            reserved: [0; 16],
        };
        match &self.body {
            Body::Data { chunk: index, ahead, map, raw_len, wire_len, leaves } => {
                fixed.kind = KIND_DATA;
                fixed.ahead = (*ahead).into();
                fixed.chunk = (*index).into();
                fixed.count = 1.into();
                fixed.raw_len = (*raw_len).into();
                fixed.wire_len = (*wire_len).into();
                let (bits, hashes) = out[FIXED..].split_at_mut(chunk.blocks() / 8);
                map.write(bits);
                for (slot, cv) in hashes.chunks_exact_mut(32).zip(leaves) {
                    slot.copy_from_slice(cv);
                }
            }
            Body::Zero { chunk: index, count } => {
                fixed.kind = KIND_ZERO;
                fixed.chunk = (*index).into();
                fixed.count = (*count).into();
            }
            Body::Keep { chunk: index, count, leaves } => {
                fixed.kind = KIND_KEEP;
                fixed.chunk = (*index).into();
                fixed.count = (*count).into();
                for (slot, cv) in out[FIXED + chunk.blocks() / 8..].chunks_exact_mut(32).zip(leaves) {
                    slot.copy_from_slice(cv);
                }
            }
            Body::End => {}
        }
        out[..FIXED].copy_from_slice(fixed.as_bytes());
    }

    /// Reads a header of [`header_len`] bytes and checks everything that needs no manifest.
    ///
    /// # Errors
    /// [`HeaderError`]; the lane that sent it cannot be trusted any more.
    pub fn decode(chunk: ChunkSize, bytes: &[u8]) -> Result<Header, HeaderError> {
        if bytes.len() != header_len(chunk) {
            return Err(HeaderError::NotAHeader);
        }
        let (fixed, rest) = Fixed::ref_from_prefix(bytes).map_err(|_| HeaderError::NotAHeader)?;
        if fixed.magic != MAGIC || fixed.reserved != [0; 16] {
            return Err(HeaderError::NotAHeader);
        }
        if fixed.flags != 0 {
            return Err(HeaderError::UnknownKind(fixed.kind));
        }
        let (bits, hashes) = rest.split_at(chunk.blocks() / 8);
        let (raw_len, wire_len) = (fixed.raw_len.get(), fixed.wire_len.get());
        let (index, count) = (fixed.chunk.get(), fixed.count.get());
        let no_data = raw_len == 0 && wire_len == 0 && fixed.ahead == 0 && bits.iter().all(|b| *b == 0);
        let no_leaves = hashes.iter().all(|b| *b == 0);
        let empty = no_data && no_leaves;
        let body = match fixed.kind {
            KIND_DATA => {
                let map = BlockMap::read(bits);
                let full = map.data_bytes(chunk.bytes());
                // Only an image's last block may be short; which one that is needs the manifest.
                let plausible = raw_len <= full && full - raw_len < BLOCK && raw_len > 0;
                if !plausible || wire_len != raw_len || count != 1 {
                    return Err(HeaderError::Inconsistent);
                }
                Body::Data {
                    chunk: index,
                    ahead: fixed.ahead.get(),
                    map,
                    raw_len,
                    wire_len,
                    leaves: cvs(hashes),
                }
            }
            KIND_ZERO if empty && count > 0 => Body::Zero { chunk: index, count },
            KIND_END if empty && count == 0 && index == 0 => Body::End,
            KIND_KEEP if no_data && no_leaves && count > 0 => {
                Body::Keep { chunk: index, count, leaves: vec![] }
            }
            KIND_KEEP if no_data && count == 1 => Body::Keep { chunk: index, count, leaves: cvs(hashes) },
            KIND_ZERO | KIND_END | KIND_KEEP => return Err(HeaderError::Inconsistent),
            other => return Err(HeaderError::UnknownKind(other)),
        };
        Ok(Header { epoch: fixed.epoch.get(), seq: fixed.seq.get(), image: fixed.image.get(), body })
    }
}

fn cvs(hashes: &[u8]) -> Vec<Cv> {
    let cv = |hash: &[u8]| {
        let mut cv = [0; 32];
        cv.copy_from_slice(hash);
        cv
    };
    hashes.chunks_exact(32).map(cv).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::hex;
    use proptest::prelude::*;

    fn data(chunk: ChunkSize, blocks: &[usize]) -> Header {
        let mut map = BlockMap::EMPTY;
        for b in blocks {
            map.set(*b..b + 1);
        }
        let raw_len = map.data_bytes(chunk.bytes());
        let leaves = (0..chunk.leaves()).map(|i| [i as u8 + 1; 32]).collect();
        let body = Body::Data { chunk: 7, ahead: 3, map, raw_len, wire_len: raw_len, leaves };
        Header { epoch: 2, seq: 5, image: 1, body }
    }

    fn encoded(h: &Header, chunk: ChunkSize) -> Vec<u8> {
        let mut out = vec![0xAA; header_len(chunk)];
        h.encode(chunk, &mut out);
        out
    }

    #[test]
    fn round_trips_in_every_chunk_size() {
        for size in ["64K", "256K", "1M", "2M", "4M"] {
            let chunk: ChunkSize = size.parse().expect("valid");
            assert!(header_len(chunk) <= HEADER_MAX);
            let zero = Header { body: Body::Zero { chunk: 9, count: 1 << 40 }, ..data(chunk, &[0]) };
            let end = Header { image: 0, body: Body::End, ..zero.clone() };
            let leaves = (0..chunk.leaves()).map(|i| [i as u8; 32]).collect::<Vec<_>>();
            let kept = if leaves.iter().all(|leaf| *leaf == [0; 32]) { vec![[1; 32]] } else { leaves };
            let kept = Header { body: Body::Keep { chunk: 9, count: 1, leaves: kept }, ..zero.clone() };
            let zeros = Header { body: Body::Keep { chunk: 9, count: 7, leaves: vec![] }, ..zero.clone() };
            for h in [data(chunk, &[0, 3, 15]), zero, end, kept, zeros] {
                assert_eq!(Header::decode(chunk, &encoded(&h, chunk)), Ok(h));
            }
        }
    }

    /// Golden: the layout of wire version 1.
    #[test]
    fn golden_header() {
        let chunk = ChunkSize::DEFAULT;
        let got = hex(&encoded(&data(chunk, &[0, 1, 255]), chunk));
        assert_eq!(got, include_str!("../tests/golden/frame.hex").trim());
    }

    #[test]
    fn contradictions_are_refused() {
        let chunk = ChunkSize::DEFAULT;
        let good = encoded(&data(chunk, &[0, 3]), chunk);
        // raw length one too large, then wire ≠ raw, then a second count, then reserved bytes
        for (at, value) in [(40, 1u8), (44, 9), (32, 2), (50, 1), (0, 0), (3, 1), (2, 9)] {
            let mut bad = good.clone();
            bad[at] = if at == 40 { bad[at].wrapping_add(value) } else { value };
            assert!(Header::decode(chunk, &bad).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for size in ["64K", "1M", "4M"] {
                let chunk: ChunkSize = size.parse().expect("valid");
                let _ = Header::decode(chunk, &bytes);
                let mut framed = bytes.clone();
                framed.resize(header_len(chunk), 0);
                framed[..2].copy_from_slice(b"vF");
                framed[2] = 1 + framed[2] % 4;
                framed[3] = 0;
                framed[48..64].fill(0);
                if let Ok(h) = Header::decode(chunk, &framed) {
                    prop_assert_eq!(Header::decode(chunk, &encoded(&h, chunk)), Ok(h));
                }
            }
        }
    }
}
