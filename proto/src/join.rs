//! How a connection proves that it belongs to a session.
//!
//! Joining is never a bearer token: both sides contribute a nonce, and each proves with a keyed
//! BLAKE3 over everything said so far that it knows the session secret. The key differs per lane,
//! and the connection's own TLS exporter (RFC 9266's idea) is part of the text, so a proof is
//! worth nothing on any other connection.
//!
//! ```text
//! sender                                 receiver
//!   Request{session, lane, epoch, nonce} →
//!                                        ← Challenge{nonce, proof}
//!   Proof                                →
//!                                        ← Welcome (1 byte: 0 admitted)
//! ```
//! Lane 0 is the control connection. A lane id is never used twice in a session; the receiver's
//! session machine enforces it.

use serde::{Deserialize, Serialize};

use crate::control::{LaneId, SessionId};

/// Bytes of a nonce, a proof and a secret.
pub const SECRET_LEN: usize = 32;
/// Bytes of a request.
pub const REQUEST_LEN: usize = 16 + 4 + 4 + SECRET_LEN;
/// Bytes of a challenge.
pub const CHALLENGE_LEN: usize = 2 * SECRET_LEN;

/// The secret that both ends of a session hold; it never travels over a lane, and shows in no log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; SECRET_LEN]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// First message of a join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which session.
    pub session: SessionId,
    /// Which lane; 0 is control.
    pub lane: LaneId,
    /// The job's attempt.
    pub epoch: u32,
    /// Fresh random bytes.
    pub nonce: [u8; SECRET_LEN],
}

impl Request {
    /// The wire form.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        out[..16].copy_from_slice(&self.session.0);
        out[16..20].copy_from_slice(&self.lane.0.to_le_bytes());
        out[20..24].copy_from_slice(&self.epoch.to_le_bytes());
        out[24..].copy_from_slice(&self.nonce);
        out
    }

    /// Any bytes of the right length are a request; the proof decides what it is worth.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Request {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (mut session, mut nonce) = ([0; 16], [0; SECRET_LEN]);
        session.copy_from_slice(&bytes[..16]);
        nonce.copy_from_slice(&bytes[24..]);
        Request { session: SessionId(session), lane: LaneId(word(16)), epoch: word(20), nonce }
    }
}

/// Everything a proof is made over.
#[derive(Debug)]
pub struct Transcript<'a> {
    /// The session secret.
    pub secret: &'a Secret,
    /// The request as it was sent.
    pub request: &'a Request,
    /// The receiver's nonce.
    pub nonce: &'a [u8; SECRET_LEN],
    /// The connection's exporter (32 bytes of keying material; empty on plain TCP).
    pub exporter: &'a [u8],
}

impl Transcript<'_> {
    /// What the receiver sends with its nonce.
    pub fn receiver_proof(&self) -> [u8; SECRET_LEN] {
        self.proof(b"receiver")
    }

    /// What the sender answers.
    pub fn sender_proof(&self) -> [u8; SECRET_LEN] {
        self.proof(b"sender\0\0")
    }

    /// A key that both ends of this join have, and nobody else. Each `purpose` has its own.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; SECRET_LEN] {
        let mut material = self.secret.0.to_vec();
        material.extend_from_slice(&self.request.encode());
        material.extend_from_slice(self.nonce);
        material.extend_from_slice(self.exporter);
        blake3::derive_key(purpose, &material)
    }

    fn proof(&self, side: &[u8; 8]) -> [u8; SECRET_LEN] {
        let mut material = self.secret.0.to_vec();
        material.extend_from_slice(&self.request.session.0);
        material.extend_from_slice(&self.request.lane.0.to_le_bytes());
        let key = blake3::derive_key("vmferry 2026 wire 1 lane join", &material);
        let mut mac = blake3::Hasher::new_keyed(&key);
        mac.update(side).update(&self.request.encode()).update(self.nonce).update(self.exporter);
        *mac.finalize().as_bytes()
    }
}

/// Compares two proofs in constant time.
pub fn proofs_equal(a: &[u8; SECRET_LEN], b: &[u8; SECRET_LEN]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_fits_one_connection_only() {
        let secret = Secret([7; 32]);
        let request = Request { session: SessionId([1; 16]), lane: LaneId(3), epoch: 1, nonce: [2; 32] };
        assert_eq!(Request::decode(&request.encode()), request);
        let (nonce, exporter) = ([9; 32], [4u8; 32]);
        let t = Transcript { secret: &secret, request: &request, nonce: &nonce, exporter: &exporter };
        let proof = t.sender_proof();
        assert!(proofs_equal(&proof, &t.sender_proof()));
        assert_ne!(proof, t.receiver_proof());
        let other_lane = Request { lane: LaneId(4), ..request };
        let other_epoch = Request { epoch: 2, ..request };
        assert_ne!(proof, Transcript { request: &other_lane, ..t }.sender_proof());
        assert_ne!(proof, Transcript { request: &other_epoch, ..t }.sender_proof());
        assert_ne!(proof, Transcript { exporter: &[5; 32], ..t }.sender_proof());
        assert_ne!(proof, Transcript { nonce: &[8; 32], ..t }.sender_proof());
        assert_ne!(proof, Transcript { secret: &Secret([6; 32]), ..t }.sender_proof());
        assert!(!format!("{secret:?}").contains('7'));
    }
}
