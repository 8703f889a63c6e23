use super::*;
use crate::granules::Content;
use crate::manifest::{SourceIdentity, Storage};
use proptest::prelude::*;

fn round_trip<M: Message + PartialEq + std::fmt::Debug>(m: M) -> Vec<u8> {
    let bytes = encode(&m).expect("fits");
    let head: [u8; HEAD_LEN] = bytes[..HEAD_LEN].try_into().expect("at least one byte");
    assert_eq!(payload_len::<M>(&head).expect("fits"), bytes.len() - 4);
    assert_eq!(decode::<M>(&bytes[4..]).expect("reads"), m);
    bytes
}

/// Golden: the wire form of version 1, so that a reordered enum is noticed.
#[test]
fn golden_messages() {
    let ack = LaneAck { lane: LaneId(2), written: 300, durable: 1 };
    let entry = ImageEntry {
        name: "sdb".into(),
        size: 1 << 30,
        sector: Some(4096),
        allocated: 1 << 30,
        mode: 0o600,
        uid: 1,
        gid: 2,
        xattrs: vec![("user.x".into(), vec![3])],
        identity: SourceIdentity { dev: 4, ino: 5, mtime_ns: -1, ctime_ns: 6 },
        storage: Storage::new(&["a".into()], &[]),
    };
    let file = ImageEntry { sector: None, ..entry.clone() };
    let open = Open {
        job: [8; 16],
        epoch: 1,
        chunk: 1 << 20,
        lanes: 4,
        path: "/dev/sdc".into(),
        force: true,
        dry_run: false,
        sync_window: Some(9),
        readback: true,
        delta: Delta::InPlace,
        chown: Some("qemu:36".parse().expect("an owner")),
        images: vec![entry, file],
    };
    let accept = Accept {
        engine: "sync".into(),
        notices: vec!["n".into()],
        earlier: vec![
            Earlier::Nothing,
            Earlier::Durable { granules: 300 },
            Earlier::Older,
            Earlier::Complete { tree: [9; 32] },
        ],
        in_place: Some("/dev/sdc".into()),
    };
    let data = Run { start: 300, content: Content::Data([4; 32]) };
    let zero = Run { start: 301, content: Content::Zero(200) };
    let bootstrap = Bootstrap {
        fingerprint: [1; 32],
        secret: Secret([2; 32]),
        transport: Transport::Tcp,
        ports: Some((7000, 7009)),
        engine: "auto".into(),
        direct: true,
        memory: 300,
        dead_after_ms: 30_000,
        nice: true,
        patience_ms: 120_000,
    };
    let got = [
        hex(&round_trip(bootstrap)),
        hex(&round_trip(ToSender::Ack { lanes: vec![ack] })),
        hex(&round_trip(ToSender::LaneClosed(ack))),
        hex(&round_trip(ToSender::Fail(Failure::new(3, "no")))),
        hex(&round_trip(ToSender::Heartbeat)),
        hex(&round_trip(ToReceiver::Finish { image: 1, tree: [7; 32] })),
        hex(&round_trip(ToReceiver::Done)),
        hex(&round_trip(ToReceiver::Heartbeat)),
        hex(&round_trip(ToReceiver::Open(open))),
        hex(&round_trip(ToSender::Accept(accept))),
        hex(&round_trip(ToSender::Found {
            image: 1,
            from: 2,
            pieces: vec![
                Piece::Data { chunk: 2, leaves: vec![[5; 32]] },
                Piece::Zero { chunk: 3, count: 300 },
            ],
            next: Some(303),
        })),
        hex(&round_trip(ToSender::Done)),
        hex(&round_trip(ToReceiver::Ask { image: 1, from: 300 })),
        hex(&round_trip(ToSender::Known { image: 1, from: 300, runs: vec![data, zero], next: Some(512) })),
        hex(&round_trip(ToReceiver::LaneLost(LaneId(300)))),
    ];
    assert_eq!(got.join("\n"), include_str!("../../tests/golden/control.hex").trim());
}

#[test]
fn full_ack_fits_its_limit() {
    let lane = |i| LaneAck { lane: LaneId(i), written: u64::MAX, durable: u64::MAX };
    round_trip(ToSender::Ack { lanes: (0..LANES_MAX).map(lane).collect() });
}

#[test]
fn many_known_runs_fit_their_limit() {
    let run = Run { start: u64::MAX, content: Content::Data([0xff; 32]) };
    let runs = vec![run; KNOWN_MAX];
    round_trip(ToSender::Known { image: u32::MAX, from: u64::MAX, runs, next: Some(u64::MAX) });
    let piece = Piece::Data { chunk: u64::MAX, leaves: vec![[0xff; 32]] };
    let pieces = vec![piece; KNOWN_MAX];
    round_trip(ToSender::Found { image: u32::MAX, from: u64::MAX, pieces, next: Some(u64::MAX) });
}

#[test]
fn lengths_are_bounded_before_allocation() {
    assert!(payload_len::<ToSender>(&[0xff, 0xff, 0xff, 0xff, 1]).is_err());
    assert!(payload_len::<ToReceiver>(&[1, 0, 0x40, 0, 0]).is_err());
    assert!(payload_len::<ToReceiver>(&[0, 0, 0, 0, 0]).is_err());
    let long = ToReceiver::Abort(Failure::new(1, "x".repeat(20_000)));
    assert!(encode(&long).is_err());
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<ToReceiver>(&bytes);
        let _ = decode::<ToSender>(&bytes);
        let _ = decode::<Bootstrap>(&bytes);
        let _ = decode::<BootstrapReply>(&bytes);
    }
}
