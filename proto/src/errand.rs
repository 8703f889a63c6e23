//! A pull: the receiver asks for images, the sender dials back and tells how it goes.
//!
//! ```text
//! receiver                                    sender
//!   (remote shell's stdin)                      (its stdout)
//!   noise-skipping magic, Hello, Errand     →
//!                                           ←  magic, Hello, News … (a sign of life)
//!                                           ←  News::Ready          (or Failed: nothing was changed)
//!   the sender dials; the job runs as any other: Open, lanes, Finish, Committed, Done
//!                                           ←  News::Started, Meter …, Committed …
//!                                           ←  News::Done           (or Failed)
//! ```
//! The receiver holds the sender to its errand: an `Open` that says anything else is refused. Whoever
//! finds the other's end of the shell closed ends the job.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::control::{Delta, Failure, MANIFEST, Message, SMALL, SessionId, Transport};
use crate::digest::Digests;
use crate::join::Secret;
use crate::owner::Owner;
use crate::telemetry::{Bottleneck, Snapshot};

/// What the receiver asks of the process that the remote shell started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Errand {
    /// Paths of the images, as typed.
    pub images: Vec<String>,
    /// Destination as typed by the user; it goes into [`Open`](crate::control::Open).
    pub path: String,
    /// Data lanes.
    pub streams: u32,
    /// How they come; no others are let in.
    pub transport: Transport,
    /// All lanes together send no faster than this, bit/s.
    pub limit: Option<u64>,
    /// Chunk size, bytes.
    pub chunk: u32,
    /// Memory for buffers, bytes; `None`: default.
    pub memory: Option<u64>,
    /// I/O engine: "auto", "uring", "sync".
    pub engine: String,
    /// Read what the file system calls a hole, too.
    pub no_holes: bool,
    /// `false`: never open with O_DIRECT.
    pub direct: bool,
    /// Send what something else may be writing; replace existing destinations.
    pub force: bool,
    /// Refuse an image that needs another file.
    pub check_format: bool,
    /// Hash any amount of zeros for the `b3` digest.
    pub b3_always: bool,
    /// As in [`Open`](crate::control::Open).
    pub sync_window: Option<u64>,
    /// As in [`Open`](crate::control::Open).
    pub readback: bool,
    /// As in [`crate::control::Open`].
    pub delta: Delta,
    /// Check everything, change nothing.
    pub dry_run: bool,
    /// As in [`Open`](crate::control::Open).
    pub chown: Option<Owner>,
    /// A connection silent for so long is dead, milliseconds.
    pub dead_after_ms: u32,
    /// Let everything else on the sender's host come first.
    pub nice: bool,
    /// A peer that is not heard at all may come back for so long, milliseconds.
    pub patience_ms: u32,
    /// SHA-256 of the receiver's one-time public key.
    pub fingerprint: [u8; 32],
    /// The session secret.
    pub secret: Secret,
    /// The session to join.
    pub session: SessionId,
    /// The port of every connection.
    pub port: u16,
    /// Which addresses may be used.
    pub family: Family,
    /// Names or addresses of the receiver for all connections, data lanes in turn; empty: the one
    /// under which the remote shell came, or one of `addresses`.
    pub via: Vec<String>,
    /// Addresses of the receiver's interfaces, best first.
    pub addresses: Vec<String>,
}

/// Address families that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Family {
    /// Both.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    /// Whether it has this address.
    pub fn has(self, address: &SocketAddr) -> bool {
        match self {
            Family::Any => true,
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
        }
    }
}

/// What the sender of a pull tells.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum News {
    /// How far it is; all zero before the job runs. Comes several times a second, as a sign of life.
    Meter(Box<Snapshot>),
    /// The images may be sent, and the receiver will be dialled.
    Ready {
        /// SHA-256 of the sender's one-time public key.
        fingerprint: [u8; 32],
        /// Size of all images, bytes.
        image_bytes: u64,
    },
    /// The job is accepted and starts.
    Started {
        /// What the user should know about the sender's end, a sentence each.
        notices: Vec<String>,
        /// The same about the receiver's.
        theirs: Vec<String>,
        /// Where control is connected.
        peer: SocketAddr,
    },
    /// From now on this block device is overwritten.
    Overwriting(String),
    /// An image is in place.
    Committed {
        /// Its name.
        name: String,
        /// Where.
        path: String,
        /// What turned out at the sender's end, a sentence each.
        notices: Vec<String>,
        /// The same at the receiver's.
        theirs: Vec<String>,
    },
    /// All is in place.
    Done(Box<Summary>),
    /// The sender gives up.
    Failed(Failure),
    /// A connection broke and is being made again.
    Lost {
        /// 0: control; else which of the data connections.
        connection: u32,
        /// How it broke.
        reason: String,
    },
    /// It is there again.
    Restored {
        /// As above.
        connection: u32,
    },
    /// A read of the sender's does not end.
    Stalled(String),
}

/// A finished job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Name → digests.
    pub digests: BTreeMap<String, Digests>,
    /// Engine of the sender and of the receiver, `uring` or `sync`.
    pub engines: (String, String),
    /// The stage that limited it; `None` when nothing was sent.
    pub bottleneck: Option<Bottleneck>,
    /// All counters; its time runs from the first read to the last durable acknowledgement.
    pub meter: Snapshot,
}

impl Message for Errand {
    fn limit(_: u8) -> u32 {
        MANIFEST
    }
}

impl Message for News {
    fn limit(kind: u8) -> u32 {
        match kind {
            // Notices and digests of all images.
            2 | 5 => MANIFEST,
            _ => SMALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{HEAD_LEN, decode, encode, payload_len};
    use crate::digest::hex;
    use crate::session::Totals;
    use crate::telemetry::{CpuTicks, ReceiverStages};
    use proptest::prelude::*;
    use std::time::Duration;

    fn round_trip<M: Message + PartialEq + std::fmt::Debug>(m: M) -> Vec<u8> {
        let bytes = encode(&m).expect("fits");
        let head: [u8; HEAD_LEN] = bytes[..HEAD_LEN].try_into().expect("at least one byte");
        assert_eq!(payload_len::<M>(&head).expect("fits"), bytes.len() - 4);
        assert_eq!(decode::<M>(&bytes[4..]).expect("reads"), m);
        bytes
    }

    fn errand() -> Errand {
        Errand {
            images: vec!["~/a.img".into(), "/b".into()],
            path: "/c/".into(),
            streams: 4,
            transport: Transport::Tcp,
            limit: Some(8),
            chunk: 1 << 20,
            memory: None,
            engine: "auto".into(),
            no_holes: false,
            direct: true,
            force: false,
            check_format: true,
            b3_always: false,
            sync_window: Some(9),
            readback: true,
            delta: Delta::Aside,
            dry_run: false,
            chown: Some("qemu:36".parse().expect("an owner")),
            dead_after_ms: 30_000,
            nice: true,
            patience_ms: 120_000,
            fingerprint: [1; 32],
            secret: Secret([2; 32]),
            session: SessionId([3; 16]),
            port: 7000,
            family: Family::V6,
            via: vec!["fe80::1%eth1".into()],
            addresses: vec!["10.0.0.1".into()],
        }
    }

    fn meter() -> Snapshot {
        let cpu = CpuTicks { busy: 1, total: 2, own: 3 };
        Snapshot {
            read_ns: 1,
            read_bytes: 2,
            buffer_wait_ns: 3,
            hash_ns: 4,
            starved_ns: 5,
            limited_ns: 6,
            send_ns: 7,
            wire_bytes: 8,
            zero_bytes: 9,
            resumed_bytes: 17,
            totals: Totals { sent: 10, resent: 11, written: 12, durable: 13 },
            cpu,
            receiver: ReceiverStages { written_bytes: 14, cpu, ..ReceiverStages::default() },
            elapsed: Duration::new(15, 16),
        }
    }

    /// Golden: the wire form of version 1, so that a reordered enum is noticed.
    #[test]
    fn golden_messages() {
        let (notices, theirs) = (vec!["n".to_owned()], vec!["t".to_owned()]);
        let digests = Digests { tree: [7; 32], b3: Some([8; 32]) };
        let done = Summary {
            digests: [("a".to_owned(), digests)].into(),
            engines: ("uring".into(), "sync".into()),
            bottleneck: Some(Bottleneck::Write),
            meter: meter(),
        };
        let peer = "10.0.0.1:7000".parse().expect("an address");
        let got = [
            hex(&round_trip(errand())),
            hex(&round_trip(News::Meter(Box::new(meter())))),
            hex(&round_trip(News::Ready { fingerprint: [4; 32], image_bytes: 300 })),
            hex(&round_trip(News::Started { notices: notices.clone(), theirs: theirs.clone(), peer })),
            hex(&round_trip(News::Overwriting("/dev/sdc".into()))),
            hex(&round_trip(News::Committed { name: "a".into(), path: "/c/a".into(), notices, theirs })),
            hex(&round_trip(News::Done(Box::new(done)))),
            hex(&round_trip(News::Failed(Failure::new(3, "no")))),
            hex(&round_trip(News::Lost { connection: 2, reason: "r".into() })),
            hex(&round_trip(News::Restored { connection: 2 })),
            hex(&round_trip(News::Stalled("s".into()))),
        ];
        assert_eq!(got.join("\n"), include_str!("../tests/golden/errand.hex").trim());
    }

    #[test]
    fn lengths_are_bounded_before_allocation() {
        for kind in 0..=255 {
            assert!(payload_len::<News>(&[0xff, 0xff, 0xff, 0xff, kind]).is_err());
            assert!(payload_len::<Errand>(&[1, 0, 0x40, 0, kind]).is_err());
        }
        let paths = vec!["x".repeat(4000); 1024];
        round_trip(Errand { images: paths, ..errand() });
        assert!(encode(&News::Failed(Failure::new(1, "x".repeat(20_000)))).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Errand>(&bytes);
            let _ = decode::<News>(&bytes);
        }

        /// Counters that a peer made up are shown as they are, and never overflow.
        #[test]
        fn any_meter_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 100..300)) {
            if let Ok((now, _)) = postcard::take_from_bytes::<Snapshot>(&bytes) {
                let _ = (now.bottleneck(), now.since(&meter()).bottleneck(), meter().since(&now));
            }
        }
    }
}
