//! Both session machines against each other, without sockets: lanes that die at any frame, acks
//! that are lost or late, duplicates, stale epochs, hostile headers.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use proto::control::{LANE_IDS_MAX, LaneId, ToReceiver, ToSender};
use proto::digest::ImageDigest;
use proto::extents::BlockMap;
use proto::frame::{Body, Header};
use proto::geometry::{BLOCK, ChunkSize};
use proto::granules::{Content, Run};
use proto::leaves::leaf_hash;
use proto::session::{Disposition, ReceiverSession, SenderSession, Unit, Violation};

const CHUNK: ChunkSize = ChunkSize::DEFAULT;

fn header(s: &SenderSession, seq: u64, unit: Unit) -> Header {
    let body = if unit.bytes == 0 {
        Body::Zero { chunk: unit.chunk, count: unit.count }
    } else {
        let mut map = BlockMap::EMPTY;
        map.set(0..(unit.bytes.div_ceil(BLOCK)) as usize);
        let leaves = vec![leaf_of(unit)];
        Body::Data { chunk: unit.chunk, ahead: 0, map, raw_len: unit.bytes, wire_len: unit.bytes, leaves }
    };
    Header { epoch: s.epoch(), seq, image: unit.image, body }
}

fn leaf_of(unit: Unit) -> [u8; 32] {
    leaf_hash(unit.chunk << 20, &[unit.image as u8; 77], u64::MAX)
}

/// One image: chunks of data, with a run of zeros in the middle.
fn units(image: u32, chunks: u64) -> Vec<Unit> {
    let data = |chunk| Unit { image, chunk, count: 1, bytes: CHUNK.bytes(), kept: false };
    let mut all: Vec<Unit> = (0..chunks / 3).map(data).collect();
    all.push(Unit { image, chunk: chunks / 3, count: chunks / 3, bytes: 0, kept: false });
    all.extend((chunks / 3 * 2..chunks).map(data));
    all
}

/// A new control connection: both sides say all that may have been lost.
fn reconnect(sender: &mut SenderSession, receiver: &mut ReceiverSession, queue: &mut VecDeque<Unit>) {
    for word in sender.unanswered() {
        let ToReceiver::LaneLost(id) = word else { panic!("{word:?}") };
        receiver.close_lane(id).unwrap();
    }
    for _ in 0..2 {
        for word in receiver.standing() {
            match word {
                ToSender::Ack { lanes } => lanes.into_iter().for_each(|a| sender.acknowledge(a).unwrap()),
                ToSender::LaneClosed(ack) => queue.extend(sender.close_lane(ack).unwrap()),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(sender.unanswered().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever order of sends, writes, deaths, flushes and lost acks: the job ends, both sides
    /// agree on the digest, and nothing is durable before a flush that began after its write.
    #[test]
    fn every_schedule_ends_with_equal_digests(
        steps in proptest::collection::vec((0u8..14, any::<u16>()), 1..400),
    ) {
        let sizes = [30u64 << 20, 12 << 20];
        let mut sender = SenderSession::new(1, sizes.len());
        let mut receiver = ReceiverSession::new(1, CHUNK, &sizes);
        let mut queue: VecDeque<Unit> = VecDeque::new();
        let mut digests: Vec<ImageDigest> = sizes.iter().map(|s| ImageDigest::new(*s, 0)).collect();
        for (image, size) in (0u32..).zip(sizes) {
            for unit in units(image, size >> 20) {
                if unit.bytes == 0 {
                    digests[image as usize].add(Run { start: unit.chunk, content: Content::Zero(unit.count) });
                } else {
                    digests[image as usize].add(Run { start: unit.chunk, content: Content::Data(leaf_of(unit)) });
                }
                sender.plan(image);
                queue.push_back(unit);
            }
            sender.plan_end(image);
        }
        let mut lanes: BTreeMap<LaneId, Vec<Header>> = BTreeMap::new();
        let open = |s: &mut SenderSession, r: &mut ReceiverSession, lanes: &mut BTreeMap<LaneId, Vec<Header>>| {
            let id = s.open_lane();
            r.open_lane(id).unwrap();
            lanes.insert(id, vec![]);
        };
        for _ in 0..3 { open(&mut sender, &mut receiver, &mut lanes); }
        let mut flush = None;
        let drain = (0..2000u16).map(|i| (if i % 5 == 4 { 4 } else { i as u8 % 5 % 3 }, i));
        for (step, n) in steps.into_iter().chain(drain) {
            let id = *lanes.keys().nth(n as usize % lanes.len()).unwrap();
            match step {
                0 | 1 => if let Some(unit) = queue.pop_front() {
                    let seq = sender.assign(id, unit).unwrap();
                    let h = header(&sender, seq, unit);
                    if let Disposition::Write(got) = receiver.frame(id, &h).unwrap() {
                        prop_assert_eq!(got, unit);
                        lanes.get_mut(&id).unwrap().push(h);
                    }
                },
                2 | 3 => {
                    let pending = lanes.get_mut(&id).unwrap();
                    if !pending.is_empty() {
                        let h = pending.swap_remove(n as usize / 7 % pending.len());
                        receiver.written(id, &h);
                    }
                },
                4 => for ack in receiver.take_acks() { sender.acknowledge(ack).unwrap(); },
                5 => { receiver.take_acks(); }, // lost with the control connection
                6 => flush = Some(receiver.begin_flush()),
                7 => if let Some(f) = flush.take() { receiver.end_flush(&f); },
                8 => {
                    // The lane dies; what it had begun is written again by another.
                    lanes.remove(&id);
                    let ack = receiver.close_lane(id).unwrap();
                    queue.extend(sender.close_lane(ack).unwrap());
                    open(&mut sender, &mut receiver, &mut lanes);
                },
                10 => {
                    // The sender notices first, and what it says may be lost.
                    sender.lose_lane(id);
                    let unit = Unit { image: 0, chunk: 0, count: 1, bytes: 1, kept: false };
                    prop_assert!(sender.assign(id, unit).is_err(), "nothing goes on a lost lane");
                    lanes.remove(&id);
                    open(&mut sender, &mut receiver, &mut lanes);
                },
                11 => {
                    // The receiver notices, and what it says is lost.
                    lanes.remove(&id);
                    receiver.close_lane(id).unwrap();
                    open(&mut sender, &mut receiver, &mut lanes);
                },
                12 => {
                    // A join that fails before the receiver hears of it.
                    let never = sender.open_lane();
                    sender.lose_lane(never);
                    prop_assert!(!sender.is_closed(never));
                },
                13 => reconnect(&mut sender, &mut receiver, &mut queue),
                _ => {
                    // An ack said again after a reconnect changes nothing.
                    if let Some(f) = flush.take() { receiver.end_flush(&f); }
                    for ack in receiver.take_acks() {
                        sender.acknowledge(ack).unwrap();
                        sender.acknowledge(ack).unwrap();
                    }
                },
            }
            let t = sender.totals();
            prop_assert!(t.durable <= t.written && t.written <= t.sent && t.resent <= t.sent);
        }
        // What was lost with control connections is said once more, and everything is brought over.
        loop {
            reconnect(&mut sender, &mut receiver, &mut queue);
            let (id, pending) = lanes.iter_mut().next().unwrap();
            while let Some(unit) = queue.pop_front() {
                let seq = sender.assign(*id, unit).unwrap();
                let h = header(&sender, seq, unit);
                // What the lane before had written behind a gap comes twice, and is dropped.
                if let Disposition::Write(got) = receiver.frame(*id, &h).unwrap() {
                    prop_assert_eq!(got, unit);
                    pending.push(h);
                }
            }
            for (id, pending) in &mut lanes {
                for h in pending.drain(..) { receiver.written(*id, &h); }
            }
            for ack in receiver.take_acks() { sender.acknowledge(ack).unwrap(); }
            if sender.all_written() { break; }
        }
        for id in lanes.into_keys() {
            let ack = receiver.close_lane(id).unwrap();
            prop_assert!(sender.close_lane(ack).unwrap().is_empty());
        }
        prop_assert_eq!(receiver.open_lanes(), 0);
        let f = receiver.begin_flush();
        receiver.end_flush(&f);
        for ack in receiver.take_acks() { sender.acknowledge(ack).unwrap(); }
        prop_assert_eq!(sender.take_finished(), vec![0, 1]);
        prop_assert_eq!(sender.totals().sent - sender.totals().resent, sender.totals().written);
        for (image, digest) in (0u32..).zip(digests) {
            let tree = digest.finish().unwrap().tree;
            prop_assert_eq!(receiver.finish(image).unwrap(), tree);
            prop_assert!(receiver.finish(image).is_err(), "finished twice");
            let finish = sender.announce(image, tree);
            prop_assert_eq!(sender.unanswered(), vec![finish]);
            prop_assert_eq!(sender.committed(image), Ok(true));
            prop_assert_eq!(sender.committed(image), Ok(false), "said twice, it is no news");
            prop_assert!(sender.unanswered().is_empty());
        }
        prop_assert!(sender.is_done());
    }
}

fn pair() -> (SenderSession, ReceiverSession, LaneId) {
    let mut sender = SenderSession::new(1, 1);
    let mut receiver = ReceiverSession::new(1, CHUNK, &[(3 << 20) + 5]);
    let id = sender.open_lane();
    receiver.open_lane(id).unwrap();
    (sender, receiver, id)
}

#[test]
fn hostile_frames_are_refused() {
    let (sender, mut receiver, id) = pair();
    let data = |chunk, bytes| Unit { image: 0, chunk, count: 1, bytes, kept: false };
    let zero = |chunk, count| Unit { image: 0, chunk, count, bytes: 0, kept: false };
    let outside = Err(Violation::OutsideImage { image: 0 });
    // Past the end, tail too long, overflowing run, run past the end.
    for (seq, unit) in
        (0..).zip([data(4, 4096), data(3, 6), zero(u64::MAX, 2), zero(1, 4), zero(0, u64::MAX)])
    {
        assert_eq!(receiver.frame(id, &header(&sender, seq, unit)), outside, "{unit:?}");
    }
    let wrong_image = Header { image: 1, ..header(&sender, 5, data(0, 4096)) };
    assert_eq!(receiver.frame(id, &wrong_image), Err(Violation::OutsideImage { image: 1 }));
    let skipped = header(&sender, 9, data(0, 4096));
    assert!(matches!(receiver.frame(id, &skipped), Err(Violation::Sequence { want: 6, .. })));
    assert!(receiver.frame(LaneId(9), &skipped).is_err());
    assert!(receiver.open_lane(id).is_err(), "a lane id is used once");
    assert!(receiver.open_lane(LaneId(0)).is_err(), "control is no data lane");
}

#[test]
fn a_lane_that_never_joined_is_used_up_and_ids_are_bounded() {
    let (mut sender, mut receiver, id) = pair();
    let never = sender.open_lane();
    let ack = receiver.close_lane(never).unwrap();
    assert_eq!((ack.written, ack.durable), (0, 0));
    assert!(receiver.open_lane(never).is_err(), "it comes too late");
    assert!(sender.close_lane(ack).unwrap().is_empty());
    assert!(sender.is_closed(never) && !sender.is_closed(id));
    assert_eq!((receiver.open_lanes(), receiver.is_open(id), receiver.is_open(never)), (1, true, false));
    assert!(receiver.open_lane(LaneId(LANE_IDS_MAX)).is_ok());
    assert!(receiver.open_lane(LaneId(LANE_IDS_MAX + 1)).is_err());
    assert!(receiver.close_lane(LaneId(LANE_IDS_MAX + 1)).is_err());
    assert!(receiver.close_lane(LaneId(0)).is_err());
}

#[test]
fn one_writer_per_chunk_and_late_frames_are_dropped() {
    let (mut sender, mut receiver, a) = pair();
    let b = sender.open_lane();
    receiver.open_lane(b).unwrap();
    let unit = Unit { image: 0, chunk: 1, count: 1, bytes: 4096, kept: false };
    let first = header(&sender, 0, unit);
    assert_eq!(receiver.frame(a, &first), Ok(Disposition::Write(unit)));
    assert_eq!(receiver.frame(b, &first), Ok(Disposition::Drop), "while the other writes it");
    receiver.written(a, &first);
    let again = Header { seq: 1, ..first.clone() };
    assert_eq!(receiver.frame(a, &again), Ok(Disposition::Drop), "after it was written");
    let stale = Header { epoch: 0, ..header(&sender, 1, Unit { chunk: 2, ..unit }) };
    assert_eq!(receiver.frame(b, &stale), Ok(Disposition::Drop), "of an earlier attempt");
}

#[test]
fn a_flush_covers_only_what_was_written_before_it_began() {
    let (mut sender, mut receiver, id) = pair();
    let unit = |chunk| Unit { image: 0, chunk, count: 1, bytes: 4096, kept: false };
    for chunk in 0..2 {
        sender.plan(0);
        let seq = sender.assign(id, unit(chunk)).unwrap();
        receiver.frame(id, &header(&sender, seq, unit(chunk))).unwrap();
    }
    receiver.written(id, &header(&sender, 0, unit(0)));
    let flush = receiver.begin_flush();
    assert_eq!(flush.images, [0]);
    receiver.written(id, &header(&sender, 1, unit(1)));
    receiver.end_flush(&flush);
    let ack = receiver.take_acks()[0];
    assert_eq!((ack.written, ack.durable), (2, 1));
    assert!(receiver.take_acks().is_empty());
    sender.acknowledge(ack).unwrap();
    assert_eq!(sender.totals().durable, 4096);
}

#[test]
fn finish_needs_every_chunk_and_acks_need_sent_frames() {
    let (mut sender, mut receiver, id) = pair();
    assert!(receiver.finish(0).is_err());
    assert!(receiver.finish(7).is_err());
    let beyond = proto::control::LaneAck { lane: id, written: 1, durable: 0 };
    assert_eq!(sender.acknowledge(beyond), Err(Violation::AckBeyondSent(id)));
    assert!(sender.committed(0).is_err());
}
