//! The lanes' side of the ready queue: each lane takes what it can carry.

use std::io::IoSlice;
use std::time::Instant;

use lanes::{Error, Lane};
use proto::control::LaneId;
use proto::frame::{Body, HEADER_MAX, Header, header_len};

use crate::lanes::Place;
use crate::read::Ready;

/// Sends units until the queue is closed and empty, then ends the lane.
///
/// # Errors
/// When the connection breaks or falls silent, or the receiver has closed the lane. No unit is lost
/// then: those that were sent come back when the receiver closes the lane.
pub(crate) async fn run(id: LaneId, mut lane: Lane, place: &Place) -> Result<(), Error> {
    let Place { chunk, queue, shared, dead_after, .. } = place;
    let (chunk, meter) = (*chunk, &shared.meter);
    lane.listen(*dead_after);
    let mut header = [0u8; HEADER_MAX];
    let header = &mut header[..header_len(chunk)];
    loop {
        let waiting = Instant::now();
        let Ok(ready) = lane.meanwhile(queue.recv()).await? else { break };
        meter.starved.since(waiting);
        if let (Some(limit), Ready::Data { unit, .. }) = (&shared.limit, &ready) {
            let waiting = Instant::now();
            limit.pass(u64::from(unit.bytes) + header.len() as u64).await;
            meter.limited.since(waiting);
        }

        let (unit, body, buffer) = match ready {
            Ready::Zero { unit } => (unit, Body::Zero { chunk: unit.chunk, count: unit.count }, None),
            Ready::Keep { unit, leaves } => {
                (unit, Body::Keep { chunk: unit.chunk, count: unit.count, leaves }, None)
            }
            Ready::Data { unit, ahead, map, leaves, buffer } => {
                let (raw_len, wire_len) = (unit.bytes, unit.bytes);
                (unit, Body::Data { chunk: unit.chunk, ahead, map, raw_len, wire_len, leaves }, Some(buffer))
            }
        };
        let (seq, epoch) = {
            let mut session = shared.session();
            (session.assign(id, unit), session.epoch())
        };
        let Ok(seq) = seq else {
            shared.give_back([unit]);
            return Err(Error::Closed);
        };
        let map = match &body {
            Body::Data { map, .. } => *map,
            _ => Default::default(),
        };
        Header { epoch, seq, image: unit.image, body }.encode(chunk, header);

        let sending = Instant::now();
        let tag = lane.tag(header);
        let mut parts = vec![IoSlice::new(header)];
        parts.extend(tag.as_ref().map(|tag| IoSlice::new(tag)));
        if let Some(buffer) = &buffer {
            let mut left = unit.bytes;
            for run in map.runs(chunk.bytes()) {
                // Only the image's last block is short, and its run is the last.
                let len = (run.end - run.start).min(left);
                left -= len;
                parts.push(IoSlice::new(&buffer[run.start as usize..(run.start + len) as usize]));
            }
        }
        lane.send(&mut parts).await?;
        meter.send.since(sending);
        let tag = tag.map_or(0, |tag| tag.len());
        meter.wire_bytes.add((header.len() + tag) as u64 + u64::from(unit.bytes));
    }
    let seq = shared.session().sent_on(id);
    let end = Header { epoch: shared.session().epoch(), seq, image: 0, body: Body::End };
    end.encode(chunk, header);
    let tag = lane.tag(header);
    lane.send(&mut [IoSlice::new(header), IoSlice::new(tag.as_ref().map_or(&[], |tag| tag))]).await?;
    // The receiver closes: until then the connection shows up as one of N, and a late reset would
    // only cover up the receiver's own reason.
    match lane.meanwhile(std::future::pending::<()>()).await {
        Err(Error::Closed) | Ok(()) => Ok(()),
        Err(e) => Err(e),
    }
}
