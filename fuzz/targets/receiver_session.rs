//! A hostile sender: any frames on any lanes, in any order, among flushes and ends of lanes.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use proto::control::LaneId;
use proto::extents::BlockMap;
use proto::frame::{Body, Header};
use proto::geometry::ChunkSize;
use proto::session::{Disposition, ReceiverSession};

#[derive(Arbitrary, Debug)]
enum Step {
    Open(u8),
    Data { lane: u8, epoch: bool, seq: u8, image: u8, chunk: u8, first: u8, last: u8, short: u16, done: bool },
    Zero { lane: u8, seq: u8, image: u8, chunk: u64, count: u64, done: bool },
    End { lane: u8, seq: u8 },
    Close(u8),
    Flush,
    Acks,
    Reconnect,
    Finish(u8),
}

fuzz_target!(|steps: Vec<Step>| {
    let chunk = ChunkSize::new(64 << 10).expect("the least");
    let sizes = [0, 1, 1 << 20, (3 << 20) + 513, 1 << 60];
    let mut session = ReceiverSession::new(1, chunk, &sizes);
    let lane = |id: u8| LaneId(u32::from(id % 5));
    for step in steps.into_iter().take(512) {
        let (id, header, done) = match step {
            Step::Open(id) => {
                let _ = session.open_lane(lane(id));
                continue;
            }
            Step::Close(id) => {
                let _ = session.close_lane(lane(id));
                continue;
            }
            Step::Flush => {
                let flush = session.begin_flush();
                session.end_flush(&flush);
                continue;
            }
            Step::Acks => {
                for ack in session.take_acks() {
                    assert!(ack.durable <= ack.written, "{ack:?}");
                }
                continue;
            }
            Step::Reconnect => {
                session.standing();
                assert!(session.open_lanes() <= 4);
                continue;
            }
            Step::Finish(image) => {
                let _ = session.finish(u32::from(image % 7));
                continue;
            }
            Step::Data { lane: id, epoch, seq, image, chunk: index, first, last, short, done } => {
                let mut map = BlockMap::EMPTY;
                let first = usize::from(first % 16);
                map.set(first..(first + 1 + usize::from(last % 16)).min(16));
                let bytes = map.data_bytes(chunk.bytes()).saturating_sub(u32::from(short % 4096)).max(1);
                let (raw_len, wire_len, leaves) = (bytes, bytes, vec![[1; 32]]);
                let body = Body::Data { chunk: u64::from(index), ahead: 0, map, raw_len, wire_len, leaves };
                let epoch = 1 - u32::from(epoch);
                (lane(id), Header { epoch, seq: u64::from(seq), image: u32::from(image % 7), body }, done)
            }
            Step::Zero { lane: id, seq, image, chunk, count, done } => {
                // The header parser refuses an empty run.
                let body = Body::Zero { chunk, count: count.max(1) };
                (lane(id), Header { epoch: 1, seq: u64::from(seq), image: u32::from(image % 7), body }, done)
            }
            Step::End { lane: id, seq } => {
                (lane(id), Header { epoch: 1, seq: u64::from(seq), image: 0, body: Body::End }, false)
            }
        };
        if let Ok(Disposition::Write(unit)) = session.frame(id, &header) {
            let size = sizes[unit.image as usize];
            let end = (unit.chunk + unit.count - 1).checked_mul(u64::from(chunk.bytes()));
            assert!(end.is_some_and(|start| start < size), "{unit:?} is outside of {size} bytes");
            if done {
                session.written(id, &header);
            }
        }
    }
});
