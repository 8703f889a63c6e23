//! The sending half of a move.
//!
//! ```text
//! plan ─→ read ─→ hash ─→ ready queue ─→ lane 1 ─→ network
//!  (thread)  (engine)  (workers)    └──→ lane N ─→ network
//! control ←─ acks, stages, commits       digest (thread) ← leaf hashes
//! ```
//! Goals: a source is read once, into one aligned buffer, hashed there and sent from there; lanes
//! take what they can carry, so a slow path takes less; memory is the pool and nothing else; the
//! source is never written. Non-goals: how the receiver was started, printing.
//!
//! Rooms: `source` what is moved and whether it may be, `plan` extents to units, `scan`
//! zeros inside data, `known` what the destination has since an earlier attempt, `found` what an older copy there holds, `read` the reader, `again` units that come
//! back, `dispatch` one lane, `lanes` all of them, `control` the conversation with the receiver, `reconnect`
//! when connections are made again, `shared` state, `digest` whole-image hashes, `meter` where the time goes, `job` all together, `cause`
//! why it ended early.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod again;
mod cause;
mod control;
mod digest;
mod dispatch;
mod found;
pub mod job;
mod known;
mod lanes;
mod limit;
pub mod meter;
mod plan;
pub mod qcow2;
mod read;
mod reconnect;
mod scan;
mod shared;
pub mod source;

pub use job::{Disk, Job, Options, Summary, run};
pub use meter::Meter;
pub use source::Source;
