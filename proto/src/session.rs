//! Session state, sender's and receiver's side, without sockets, files or clock.
//!
//! A job's work is cut into **units**: one chunk of data, or a run of chunks that read as zero.
//! A lane numbers the units that it carries; the receiver acknowledges per lane, cumulatively,
//! how many are *written* (verified, handed to the file system) and how many are *durable*. That
//! makes an acknowledgement idempotent: it may be lost with a control connection and said again.
//!
//! | receiver phase | enters on | may receive |
//! |---|---|---|
//! | waiting | session made | `Open` |
//! | receiving | `Accept` sent | frames; `Finish` of an image whose units are all written |
//! | committing | `Finish` | nothing for that image |
//! | done | every image committed | `Done` |
//!
//! | a lane is | sender | receiver |
//! |---|---|---|
//! | open | from `open_lane`, before it joins | from its join |
//! | lost | from `lose_lane`: nothing is sent on it any more | from `LaneLost` or when it broke: its writes still end |
//! | closed | from `LaneClosed`: its unwritten units are given back | when its writes have ended |
//!
//! Invariants: a unit has one writer; a lane id is used once; nothing is durable that was not
//! written before the flush that covers it began; an image is finished only when every chunk of
//! it was told exactly once.

mod receiver;
mod sender;

use std::ops::Range;

use thiserror::Error;

use crate::control::LaneId;

pub use receiver::{Disposition, Flush, ReceiverSession};
pub use sender::{SenderSession, Totals};

/// One piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Index into the manifest.
    pub image: u32,
    /// First chunk.
    pub chunk: u64,
    /// Chunks: 1 for data, any number for zeros.
    pub count: u64,
    /// Payload bytes; 0 for zeros, and for what is kept.
    pub bytes: u32,
    /// The destination has it already.
    pub kept: bool,
}

impl Unit {
    fn chunks(&self) -> Range<u64> {
        self.chunk..self.chunk.saturating_add(self.count)
    }
}

/// The peer broke the protocol; the session cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// A lane id that is unknown, closed or used before.
    #[error("lane {} is not part of this session", .0.0)]
    UnknownLane(LaneId),
    /// A sequence out of order.
    #[error("lane {} sent frame {got} where {want} was due", lane.0)]
    Sequence {
        /// Which lane.
        lane: LaneId,
        /// Its sequence.
        got: u64,
        /// The one expected.
        want: u64,
    },
    /// A frame outside its image, or whose lengths are not the image's.
    #[error("a frame does not fit image {image}")]
    OutsideImage {
        /// Index into the manifest.
        image: u32,
    },
    /// More acknowledged than sent.
    #[error("lane {} acknowledges frames that were not sent", .0.0)]
    AckBeyondSent(LaneId),
    /// Finish for an image that is not complete.
    #[error("image {image} was called finished while parts of it are missing")]
    NotComplete {
        /// Index into the manifest.
        image: u32,
    },
}
