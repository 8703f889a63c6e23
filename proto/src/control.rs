//! Messages of the control connection and of the bootstrap over a remote shell.
//!
//! Framing: length (`u32`, little endian), then the postcard form of one message. The first byte
//! is the message's kind, and each kind has its own limit, checked before anything is allocated.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::digest::{Cv, hex};
use crate::granules::Run;
use crate::join::Secret;
use crate::manifest::ImageEntry;
use crate::owner::Owner;
use crate::telemetry::ReceiverStages;

/// A session, made by the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0[..4]))
    }
}

/// One connection of a session; 0 is control, data lanes count from 1 and are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LaneId(pub u32);

/// The control connection's id.
pub const CONTROL: LaneId = LaneId(0);
/// Most data lanes in one session at a time.
pub const LANES_MAX: u32 = 256;
/// Most data lanes in one session one after the other: a lane that breaks is replaced by one with a
/// new id. A receiver remembers each in some 200 bytes.
pub const LANE_IDS_MAX: u32 = 16_384;

/// Ends a job: the exit code that both ends give, and one sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[error("{reason}")]
pub struct Failure {
    /// Process exit code (see the command's documentation).
    pub exit: u8,
    /// One sentence: the thing, the cause, the next step.
    pub reason: String,
}

impl Failure {
    /// A failure with this exit code and sentence.
    pub fn new(exit: u8, reason: impl Into<String>) -> Failure {
        Failure { exit, reason: reason.into() }
    }
}

/// How data lanes are carried and protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Transport {
    /// TLS 1.3 over TCP.
    #[default]
    Tls,
    /// TCP: readable on the way, but each frame is authenticated. Control still runs over TLS.
    Tcp,
}

impl Transport {
    /// The word used on the command line and in `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Tls => "tls",
            Transport::Tcp => "tcp",
        }
    }
}

/// What the sender asks of the process that the remote shell started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bootstrap {
    /// SHA-256 of the sender's one-time public key.
    pub fingerprint: [u8; 32],
    /// The session secret.
    pub secret: Secret,
    /// How data lanes will come; no others are let in.
    pub transport: Transport,
    /// Ports to listen on, inclusive; `None`: any free one.
    pub ports: Option<(u16, u16)>,
    /// I/O engine for this end: "auto", "uring", "sync".
    pub engine: String,
    /// `false`: never open with O_DIRECT.
    pub direct: bool,
    /// Memory for buffers, bytes; 0: default.
    pub memory: u64,
    /// A connection silent for so long is dead, milliseconds.
    pub dead_after_ms: u32,
    /// Let everything else on the receiver's host come first.
    pub nice: bool,
    /// A sender that is not heard at all may come back for so long, milliseconds.
    pub patience_ms: u32,
}

/// The receiver's answer on its stdout.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BootstrapReply {
    /// Listening.
    Ready {
        /// SHA-256 of the receiver's one-time public key.
        fingerprint: [u8; 32],
        /// The session to join.
        session: SessionId,
        /// The port of every connection.
        port: u16,
        /// Addresses under which it may be reached, best first.
        addresses: Vec<String>,
    },
    /// Not possible.
    Fail(Failure),
}

/// What the sender says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToReceiver {
    /// Opens the job.
    Open(Open),
    /// All of this image was acknowledged as written; here is its tree digest.
    Finish {
        /// Index into the manifest.
        image: u32,
        /// Tree digest of what was read.
        tree: [u8; 32],
    },
    /// Every image is committed: end.
    Done,
    /// The sender gives up.
    Abort(Failure),
    /// Still here. Also the first word on a control connection that takes the place of another.
    Heartbeat,
    /// Asks for the hashes of what is there since an earlier attempt, or of an older copy: the next
    /// [`ANSWERS`] messages full.
    Ask {
        /// Index into the manifest.
        image: u32,
        /// The first granule of interest; of an older copy, the first chunk.
        from: u64,
    },
    /// This lane is broken, or never came to be: drain it and say how far it came (`LaneClosed`).
    LaneLost(LaneId),
}

/// A job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open {
    /// The job's name across attempts.
    pub job: [u8; 16],
    /// Attempt, from 1.
    pub epoch: u32,
    /// Chunk size, bytes.
    pub chunk: u32,
    /// Data lanes that will be there at a time.
    pub lanes: u32,
    /// Destination as typed by the user; a folder when `images` has several.
    pub path: String,
    /// Replace existing destinations.
    pub force: bool,
    /// Check everything, change nothing.
    pub dry_run: bool,
    /// Data that may be written and not yet durable, bytes; `None`: 256 MiB, or more where flushes
    /// are slow.
    pub sync_window: Option<u64>,
    /// Read everything back from the disk before it is committed.
    pub readback: bool,
    /// What older copies at the destination are good for.
    pub delta: Delta,
    /// Who the copies are to belong to; `None`: whoever the sources belong to.
    pub chown: Option<Owner>,
    /// What is moved.
    pub images: Vec<ImageEntry>,
}

/// What becomes of an older copy at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Delta {
    /// It is in the way, or replaced as a whole.
    #[default]
    No,
    /// What differs is changed in a clone of it, or in a copy; it stays as it is until that is complete.
    Aside,
    /// What differs is changed in it.
    InPlace,
}

/// What the receiver says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToSender {
    /// The job may start.
    Accept(Accept),
    /// Progress of the lanes that moved since the last one.
    Ack {
        /// Cumulative marks.
        lanes: Vec<LaneAck>,
    },
    /// A lane has ended and all its writes have drained: what is above the marks is lost.
    LaneClosed(LaneAck),
    /// Where the receiver's time went so far.
    Stages(ReceiverStages),
    /// The image is in place under its final name.
    Committed {
        /// Index into the manifest.
        image: u32,
        /// Tree digest of what arrived.
        tree: [u8; 32],
        /// Where it lies.
        path: String,
        /// Things the user should know, a sentence each.
        notices: Vec<String>,
    },
    /// The receiver gives up.
    Fail(Failure),
    /// Still here, also during a long flush.
    Heartbeat,
    /// An answer to [`ToReceiver::Ask`]: such granules in order, at most [`KNOWN_MAX`] runs.
    Known {
        /// Index into the manifest.
        image: u32,
        /// As it was asked for, or where the answer before this one ended.
        from: u64,
        /// What they hold.
        runs: Vec<Run>,
        /// Where to go on; `None`: there are no more.
        next: Option<u64>,
    },
    /// An answer to [`ToReceiver::Ask`] about an older copy: what it holds, in order; at most
    /// [`KNOWN_MAX`] leaves.
    Found {
        /// Index into the manifest.
        image: u32,
        /// Chunk: as it was asked for, or where the answer before this one ended.
        from: u64,
        /// What there is. What is left out is not there.
        pieces: Vec<Piece>,
        /// Where to go on; `None`: there is no more.
        next: Option<u64>,
    },
    /// The answer to [`ToReceiver::Done`]: nothing is left but the images.
    Done,
}

/// Answers to one [`ToReceiver::Ask`], fewer at the end: 16 GiB of data for one round trip.
pub const ANSWERS: u32 = 64;
/// Runs in one [`ToSender::Known`], leaves in one [`ToSender::Found`] at most: it stays below the limit of its kind.
pub const KNOWN_MAX: usize = 256;

/// The receiver's answer to [`Open`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Accept {
    /// Engine in use: "uring" or "sync".
    pub engine: String,
    /// Things the user should know, a sentence each.
    pub notices: Vec<String>,
    /// What an earlier attempt left of each image.
    pub earlier: Vec<Earlier>,
    /// The block device that is overwritten in place: it holds an incomplete copy when the job
    /// fails. `None`: the destination is as it was until the copy is complete.
    pub in_place: Option<String>,
}

/// What an earlier attempt left of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Earlier {
    /// Nothing.
    Nothing,
    /// So many granules of it are durable, and the source is what it was: they need not come again.
    /// Their hashes are to be asked for ([`ToReceiver::Ask`]).
    Durable {
        /// How many.
        granules: u64,
    },
    /// An older copy, or one that was interrupted: what it holds is found out meanwhile, and to be asked
    /// for; what is the same is kept ([`crate::frame::Body::Keep`]).
    Older,
    /// All of it, under its final name.
    Complete {
        /// Tree digest of what arrived then.
        tree: [u8; 32],
    },
}

/// What chunks of an older copy hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Piece {
    /// One chunk with data.
    Data {
        /// Which.
        chunk: u64,
        /// One hash per leaf; of leaves without data all zero.
        leaves: Vec<Cv>,
    },
    /// Chunks that read as zero.
    Zero {
        /// The first.
        chunk: u64,
        /// How many.
        count: u64,
    },
}

/// How far one lane has come. Both marks are cumulative: counts of frames from sequence 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaneAck {
    /// Which lane.
    pub lane: LaneId,
    /// Frames verified and written.
    pub written: u64,
    /// Frames that a power cut cannot take back.
    pub durable: u64,
}

/// Why bytes are not a control message.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Longer than its kind may be.
    #[error("control message of {len} bytes where {limit} are allowed")]
    TooLong {
        /// Claimed length.
        len: u32,
        /// The kind's limit.
        limit: u32,
    },
    /// Not the form of a message.
    #[error("control message that cannot be read")]
    Malformed,
}

/// A family of messages with a size limit per kind.
pub trait Message: Serialize + DeserializeOwned {
    /// Longest postcard form, bytes, of the message whose first byte is `kind`.
    fn limit(kind: u8) -> u32;
}

pub(crate) const SMALL: u32 = 16 << 10;
/// 1024 entries with names and a few attributes; an ACL or two do not reach it.
pub(crate) const MANIFEST: u32 = 4 << 20;

impl Message for Bootstrap {
    fn limit(_: u8) -> u32 {
        SMALL
    }
}

impl Message for BootstrapReply {
    fn limit(_: u8) -> u32 {
        SMALL
    }
}

impl Message for ToReceiver {
    fn limit(kind: u8) -> u32 {
        if kind == 0 { MANIFEST } else { SMALL }
    }
}

impl Message for ToSender {
    fn limit(kind: u8) -> u32 {
        match kind {
            0 => MANIFEST,
            // Acks: LANES_MAX lanes of at most 25 bytes.
            1 => 8 << 10,
            _ => SMALL,
        }
    }
}

/// Length of the head that [`payload_len`] needs: the frame's length and the first payload byte.
pub const HEAD_LEN: usize = 5;

/// Encodes one message with its frame.
///
/// # Errors
/// [`ControlError::TooLong`] when our own message exceeds its limit.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, ControlError> {
    let body = postcard::to_stdvec(message).map_err(|_| ControlError::Malformed)?;
    let len = u32::try_from(body.len()).map_err(|_| ControlError::Malformed)?;
    let limit = M::limit(body.first().copied().unwrap_or(0));
    if len > limit {
        return Err(ControlError::TooLong { len, limit });
    }
    let mut out = Vec::with_capacity(body.len() + 4);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// From the first five bytes of a frame: how many payload bytes it has (the fifth byte included).
///
/// # Errors
/// When the length is 0 or over the kind's limit.
pub fn payload_len<M: Message>(head: &[u8; HEAD_LEN]) -> Result<usize, ControlError> {
    let [a, b, c, d, kind] = *head;
    let (len, limit) = (u32::from_le_bytes([a, b, c, d]), M::limit(kind));
    match len {
        0 => Err(ControlError::Malformed),
        _ if len > limit => Err(ControlError::TooLong { len, limit }),
        _ => Ok(len as usize),
    }
}

/// Decodes a whole payload; bytes left over are an error.
///
/// # Errors
/// [`ControlError::Malformed`]
pub fn decode<M: Message>(payload: &[u8]) -> Result<M, ControlError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        _ => Err(ControlError::Malformed),
    }
}

#[cfg(test)]
mod tests;
