//! Connections of a vmferry session.
//!
//! Goals: every connection, control or data, is encrypted, pinned to the one key that the peer
//! announced, and proven to belong to the session before a byte of it is believed; each data lane
//! is its own socket with its own port, so that per-connection ceilings, bonds and receive queues
//! see several flows. Non-goals: buffers (lanes receive into the caller's `&mut [u8]`), the
//! meaning of frames, retrying.
//!
//! Rooms: [`identity`] one-time keys, [`tls`] pinned TLS 1.3, [`stream`] the byte stream that a
//! lane is (plain TCP and QUIC are further variants there), `pulse` signs of life on data lanes, [`tune`] socket options and source
//! ports, [`dial`] the sender's end, [`listen`] the receiver's, [`message`] control messages,
//! [`meter`] counters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod dial;
mod error;
pub mod identity;
pub mod listen;
pub mod message;
pub mod meter;
mod pulse;
pub mod stream;
pub mod tls;
pub mod tune;

pub use error::Error;
pub use stream::Lane;
