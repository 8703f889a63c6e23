//! What protects a frame on a data lane without TLS.
//!
//! Behind each frame header travels a tag: keyed BLAKE3 over the frame's number on this lane and
//! the header, hash values of the payload included. The payload itself is hashed once, by the
//! verifier, and nothing is written that does not fit the header: so a frame that was changed,
//! made up, repeated, left out or taken from another lane, job or direction is refused, while the
//! payload stays readable on the wire.
//!
//! The key is the lane's own: it comes from the session secret and both nonces of the join, which
//! proved that both ends hold that secret.

use crate::join::{SECRET_LEN, Transcript};

/// Bytes of a tag.
pub const TAG_LEN: usize = 32;

/// Makes or checks the tags of one lane, frame by frame.
#[derive(Clone)]
pub struct Seal {
    key: [u8; SECRET_LEN],
    /// Of the next frame, from 0.
    number: u64,
}

impl Seal {
    /// For the frames that the session's sender sends on the lane of this join.
    pub fn new(join: &Transcript<'_>) -> Seal {
        Seal { key: join.derive("vmferry 2026 wire 1 frame tag, sender to receiver"), number: 0 }
    }

    /// The tag of the next frame, whose header this is.
    pub fn tag(&mut self, header: &[u8]) -> [u8; TAG_LEN] {
        let mut mac = blake3::Hasher::new_keyed(&self.key);
        mac.update(&self.number.to_le_bytes()).update(header);
        self.number += 1;
        *mac.finalize().as_bytes()
    }

    /// Whether `tag` is that of the next frame, whose header this is. After a "no" the lane cannot
    /// be trusted any more.
    #[must_use]
    pub fn fits(&mut self, header: &[u8], tag: &[u8; TAG_LEN]) -> bool {
        // blake3::Hash compares in constant time.
        blake3::Hash::from_bytes(self.tag(header)) == blake3::Hash::from_bytes(*tag)
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LaneId, SessionId};
    use crate::digest::hex;
    use crate::join::{Request, Secret};

    fn seal(lane: u32, secret: u8, nonces: [u8; 2]) -> Seal {
        let request =
            Request { session: SessionId([1; 16]), lane: LaneId(lane), epoch: 1, nonce: [nonces[0]; 32] };
        let (secret, nonce) = (Secret([secret; 32]), [nonces[1]; 32]);
        Seal::new(&Transcript { secret: &secret, request: &request, nonce: &nonce, exporter: &[] })
    }

    #[test]
    fn a_tag_fits_one_frame_of_one_lane() {
        let tag = seal(1, 7, [2, 9]).tag(b"header");
        assert!(seal(1, 7, [2, 9]).fits(b"header", &tag));
        assert!(!seal(1, 7, [2, 9]).fits(b"headex", &tag), "another header");
        assert!(!seal(2, 7, [2, 9]).fits(b"header", &tag), "another lane");
        assert!(!seal(1, 8, [2, 9]).fits(b"header", &tag), "another secret");
        assert!(!seal(1, 7, [3, 9]).fits(b"header", &tag), "another nonce of the sender");
        assert!(!seal(1, 7, [2, 8]).fits(b"header", &tag), "another nonce of the receiver");
        let mut later = seal(1, 7, [2, 9]);
        assert!(later.fits(b"header", &tag));
        assert!(!later.fits(b"header", &tag), "the same frame again");
        assert!(!format!("{later:?}").contains("key"));
    }

    /// Golden: wire version 1.
    #[test]
    fn golden_tag() {
        let got = hex(&seal(1, 7, [2, 9]).tag(b"header"));
        assert_eq!(got, include_str!("../tests/golden/tag.hex").trim());
    }
}
