//! A hostile receiver: any acknowledgements, ends of lanes and commits.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use proto::control::{LaneAck, LaneId};
use proto::session::{SenderSession, Unit};

#[derive(Arbitrary, Debug)]
enum Step {
    Open,
    Plan(u8),
    PlanEnd(u8),
    Assign { lane: u8, image: u8, chunk: u8, bytes: u16 },
    Ack { lane: u8, written: u8, durable: u8 },
    Huge { lane: u8, written: u64, durable: u64 },
    Close { lane: u8, written: u8, durable: u8 },
    Finished,
    Committed(u8),
    Lose(u8),
    Announce(u8),
    Reconnect,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut session = SenderSession::new(1, 3);
    let lane = |id: u8| LaneId(u32::from(id % 6));
    for step in steps.into_iter().take(512) {
        match step {
            Step::Open => _ = session.open_lane(),
            Step::Plan(image) => session.plan(u32::from(image % 4)),
            Step::PlanEnd(image) => session.plan_end(u32::from(image % 4)),
            Step::Assign { lane: id, image, chunk, bytes } => {
                // As the reader does: planned first.
                let image = u32::from(image % 3);
                session.plan(image);
                let unit =
                    Unit { image, chunk: u64::from(chunk), count: 1, bytes: u32::from(bytes), kept: false };
                let _ = session.assign(lane(id), unit);
            }
            Step::Ack { lane: id, written, durable } => {
                let (written, durable) = (u64::from(written), u64::from(durable));
                let _ = session.acknowledge(LaneAck { lane: lane(id), written, durable });
            }
            Step::Huge { lane: id, written, durable } => {
                let _ = session.acknowledge(LaneAck { lane: lane(id), written, durable });
            }
            Step::Close { lane: id, written, durable } => {
                let (written, durable) = (u64::from(written), u64::from(durable));
                let _ = session.close_lane(LaneAck { lane: lane(id), written, durable });
            }
            Step::Finished => _ = session.take_finished(),
            Step::Lose(id) => session.lose_lane(lane(id)),
            Step::Announce(image) => _ = session.announce(u32::from(image % 4), [1; 32]),
            Step::Reconnect => _ = session.unanswered(),
            Step::Committed(image) => _ = session.committed(u32::from(image % 4)),
        }
        let totals = session.totals();
        assert!(totals.durable <= totals.written && totals.written <= totals.sent, "{totals:?}");
    }
});
