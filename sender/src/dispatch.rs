//! The lanes' side of the ready queue: each lane takes what it can carry.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use lanes::{Error, Lane};
use proto::control::LaneId;
use proto::frame::{Body, HEADER_MAX, Header, header_len};
use proto::geometry::ChunkSize;

use crate::job::Shared;
use crate::read::Ready;

/// Sends units until the queue is closed and empty, then ends the lane.
///
/// # Errors
/// When the connection breaks. (A protocol violation of our own is one too: the lane was closed.)
pub(crate) async fn run(
    id: LaneId,
    mut lane: Lane,
    chunk: ChunkSize,
    queue: async_channel::Receiver<Ready>,
    shared: Arc<Shared>,
) -> Result<(), Error> {
    let meter = &shared.meter;
    let mut header = [0u8; HEADER_MAX];
    let header = &mut header[..header_len(chunk)];
    loop {
        let waiting = Instant::now();
        let Ok(ready) = queue.recv().await else { break };
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
            let seq = session.assign(id, unit).map_err(|_| Error::Closed)?;
            (seq, session.epoch())
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
    let _ = lane.receive(&mut [0]).await;
    Ok(())
}
