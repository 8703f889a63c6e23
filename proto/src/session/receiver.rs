//! The receiver's side: which frame may be written, what is complete, what is durable.

use std::collections::BTreeMap;

use super::{Unit, Violation};
use crate::control::{LANE_IDS_MAX, LANES_MAX, LaneAck, LaneId, ToSender};
use crate::digest::ImageDigest;
use crate::extents::RunSet;
use crate::frame::{Body, Header};
use crate::geometry::{BLOCK, ChunkSize};
use crate::granules::{self, Granules, Run};

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// This lane writes it; report [`ReceiverSession::written`] afterwards.
    Write(Unit),
    /// Late or a duplicate: read the payload and drop it.
    Drop,
    /// The lane ends.
    End,
}

/// Which frames a flush will make durable; taken before the flush begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flush {
    marks: Vec<(LaneId, u64)>,
    /// Images that had writes since their last flush.
    pub images: Vec<u32>,
    /// Per image: granules that were completed since then, to be noted once it has succeeded.
    pub granules: Vec<(u32, Vec<Run>)>,
}

#[derive(Debug, Default)]
struct Lane {
    next: u64,
    in_flight: BTreeMap<u64, Unit>,
    done: RunSet,
    durable: u64,
    closed: bool,
    told: (u64, u64),
}

impl Lane {
    fn ack(&self, lane: LaneId) -> LaneAck {
        LaneAck { lane, written: self.done.first_gap(), durable: self.durable }
    }
}

#[derive(Debug)]
struct Image {
    size: u64,
    chunks: u64,
    written: RunSet,
    granules: Granules,
    /// Written since the last flush.
    fresh: Vec<Run>,
    digest: Option<ImageDigest>,
    dirty: bool,
}

impl Image {
    fn add(&mut self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            self.fresh.push(run);
            if let Some(digest) = &mut self.digest {
                digest.add(run);
            }
        }
    }
}

/// The receiver's state of one session.
#[derive(Debug)]
pub struct ReceiverSession {
    epoch: u32,
    chunk: ChunkSize,
    lanes: BTreeMap<LaneId, Lane>,
    images: Vec<Image>,
}

impl ReceiverSession {
    /// A session for images of these sizes (bytes).
    pub fn new(epoch: u32, chunk: ChunkSize, sizes: &[u64]) -> ReceiverSession {
        let image = |size: &u64| Image {
            size: *size,
            chunks: chunk.count(*size),
            written: RunSet::new(),
            granules: Granules::new(*size, chunk),
            fresh: Vec::new(),
            digest: Some(ImageDigest::new(*size, 0)),
            dirty: false,
        };
        ReceiverSession { epoch, chunk, lanes: BTreeMap::new(), images: sizes.iter().map(image).collect() }
    }

    /// The job's chunk size.
    pub fn chunk(&self) -> ChunkSize {
        self.chunk
    }

    /// A data lane joins.
    ///
    /// # Errors
    /// [`Violation::UnknownLane`] when the id was used before, is the control connection's, or is over
    /// [`LANE_IDS_MAX`].
    pub fn open_lane(&mut self, id: LaneId) -> Result<(), Violation> {
        if id.0 == 0 || id.0 > LANE_IDS_MAX || self.lanes.contains_key(&id) {
            return Err(Violation::UnknownLane(id));
        }
        self.lanes.insert(id, Lane::default());
        Ok(())
    }

    /// Whether the lane has joined and is not closed.
    pub fn is_open(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_some_and(|l| !l.closed)
    }

    /// Lanes that have joined and are not closed.
    pub fn open_lanes(&self) -> usize {
        self.lanes.values().filter(|l| !l.closed).count()
    }

    /// Judges a frame by its header.
    ///
    /// # Errors
    /// [`Violation`] when it breaks the protocol.
    pub fn frame(&mut self, id: LaneId, header: &Header) -> Result<Disposition, Violation> {
        let busy = |lanes: &BTreeMap<LaneId, Lane>, unit: &Unit| {
            let chunks = unit.chunks();
            lanes.values().flat_map(|l| l.in_flight.values()).any(|other| {
                other.image == unit.image
                    && other.chunks().start < chunks.end
                    && chunks.start < other.chunks().end
            })
        };
        let lane = self.lanes.get_mut(&id).filter(|l| !l.closed).ok_or(Violation::UnknownLane(id))?;
        if header.seq != lane.next {
            return Err(Violation::Sequence { lane: id, got: header.seq, want: lane.next });
        }
        lane.next += 1;
        if header.body == Body::End {
            return Ok(Disposition::End);
        }
        let outside = Violation::OutsideImage { image: header.image };
        let image = self.images.get(header.image as usize).ok_or(outside.clone())?;
        let unit = fitting(header, image, self.chunk).ok_or(outside)?;
        let stale = header.epoch != self.epoch;
        if stale || image.written.intersects(&unit.chunks()) || busy(&self.lanes, &unit) {
            self.done(id, header.seq);
            return Ok(Disposition::Drop);
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.in_flight.insert(header.seq, unit);
        }
        Ok(Disposition::Write(unit))
    }

    /// A frame that was to be written is verified and written.
    pub fn written(&mut self, id: LaneId, header: &Header) {
        let Some(unit) = self.lanes.get_mut(&id).and_then(|l| l.in_flight.remove(&header.seq)) else {
            return;
        };
        self.done(id, header.seq);
        let Some(image) = self.images.get_mut(unit.image as usize) else { return };
        image.written.insert_new(unit.chunks());
        // Zeros too: they may have replaced what was there.
        image.dirty = true;
        let first = unit.chunk * self.chunk.leaves() as u64;
        match &header.body {
            Body::Data { map, leaves, .. } => {
                let blocks = (self.chunk.leaf() / BLOCK) as usize;
                for (i, (at, cv)) in (first..).zip(leaves).enumerate() {
                    if map.any(i * blocks..(i + 1) * blocks) {
                        let run = image.granules.data(at, *cv);
                        image.add(run);
                    } else {
                        let runs = image.granules.zeros(at, 1);
                        image.add(runs);
                    }
                }
            }
            Body::Keep { leaves, .. } if !leaves.is_empty() => {
                for (at, cv) in (first..).zip(leaves) {
                    if *cv == [0; 32] {
                        let runs = image.granules.zeros(at, 1);
                        image.add(runs);
                    } else {
                        let run = image.granules.data(at, *cv);
                        image.add(run);
                    }
                }
            }
            Body::Zero { .. } | Body::Keep { .. } => {
                let runs = image.granules.zeros(first, unit.count.saturating_mul(self.chunk.leaves() as u64));
                image.add(runs);
            }
            Body::End => {}
        }
    }

    fn done(&mut self, id: LaneId, seq: u64) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.done.insert_new(seq..seq + 1);
        }
    }

    /// The lane's connection is gone and its writes have drained; units that it had begun are free
    /// for another lane. One that never joined will not: its id is used up.
    ///
    /// # Errors
    /// [`Violation::UnknownLane`] when there cannot be such a lane.
    pub fn close_lane(&mut self, id: LaneId) -> Result<LaneAck, Violation> {
        if !self.lanes.contains_key(&id) {
            self.open_lane(id)?;
        }
        let lane = self.lanes.get_mut(&id).ok_or(Violation::UnknownLane(id))?;
        lane.closed = true;
        lane.in_flight.clear();
        let ack = lane.ack(id);
        lane.told = (ack.written, ack.durable);
        Ok(ack)
    }

    /// How far every lane has come, for a new control connection: what was said on the last one may
    /// be lost.
    pub fn standing(&self) -> Vec<ToSender> {
        let acks = |closed: bool| self.lanes.iter().filter(move |(_, l)| l.closed == closed);
        let open: Vec<LaneAck> = acks(false).map(|(id, l)| l.ack(*id)).collect();
        let open = open.chunks(LANES_MAX as usize).map(|lanes| ToSender::Ack { lanes: lanes.to_vec() });
        open.chain(acks(true).map(|(id, l)| ToSender::LaneClosed(l.ack(*id)))).collect()
    }

    /// What a flush that begins now will cover.
    pub fn begin_flush(&mut self) -> Flush {
        let marks = self.lanes.iter().map(|(id, l)| (*id, l.done.first_gap())).collect();
        let mut flush = Flush { marks, images: Vec::new(), granules: Vec::new() };
        for (i, image) in (0u32..).zip(&mut self.images) {
            if std::mem::take(&mut image.dirty) {
                flush.images.push(i);
            }
            if !image.fresh.is_empty() {
                flush.granules.push((i, std::mem::take(&mut image.fresh)));
            }
        }
        flush
    }

    /// That flush has succeeded. (One that failed is never ended: its job is over.)
    pub fn end_flush(&mut self, flush: &Flush) {
        for (id, mark) in &flush.marks {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.durable = lane.durable.max(*mark);
            }
        }
    }

    /// Granules of `image` are durable since an earlier attempt: those that make up whole chunks,
    /// which need not come again, and of which [`ReceiverSession::resumed`] has to tell.
    pub fn resume(&mut self, image: u32, durable: &RunSet) -> RunSet {
        let Some(image) = self.images.get_mut(image as usize) else { return RunSet::new() };
        let covered = granules::covered(durable, image.size, self.chunk);
        for chunks in granules::chunks(&covered, image.size, self.chunk) {
            image.written.insert_new(chunks);
        }
        covered
    }

    /// What such granules hold.
    pub fn resumed(&mut self, image: u32, run: Run) {
        let Some(image) = self.images.get_mut(image as usize) else { return };
        image.granules.known(&run);
        if let Some(digest) = &mut image.digest {
            digest.add(run);
        }
    }

    /// Acknowledgements of the lanes that moved since the last call, closed ones among them.
    pub fn take_acks(&mut self) -> Vec<LaneAck> {
        let mut acks = Vec::new();
        for (id, lane) in &mut self.lanes {
            let ack = lane.ack(*id);
            if lane.told != (ack.written, ack.durable) {
                lane.told = (ack.written, ack.durable);
                acks.push(ack);
            }
        }
        acks
    }

    /// The sender calls an image finished: the tree digest of what was written.
    ///
    /// # Errors
    /// [`Violation::NotComplete`] when a chunk is missing or still being written, or on a second call.
    pub fn finish(&mut self, image: u32) -> Result<[u8; 32], Violation> {
        let missing = Violation::NotComplete { image };
        let state = self.images.get_mut(image as usize).ok_or(missing.clone())?;
        if !state.written.is_exactly(state.chunks) {
            return Err(missing);
        }
        let digests = state.digest.take().and_then(ImageDigest::finish).ok_or(missing)?;
        Ok(digests.tree)
    }
}

/// The frame as a unit, when its chunks and lengths are the image's.
fn fitting(header: &Header, image: &Image, chunk: ChunkSize) -> Option<Unit> {
    let unit = match &header.body {
        Body::Data { chunk: index, map, raw_len, .. } => {
            let len = chunk.len_of(*index, image.size);
            if map.exceeds(len) || map.data_bytes(len) != *raw_len {
                return None;
            }
            Unit { image: header.image, chunk: *index, count: 1, bytes: *raw_len, kept: false }
        }
        Body::Zero { chunk: index, count } | Body::Keep { chunk: index, count, .. } => {
            let kept = matches!(&header.body, Body::Keep { .. });
            Unit { image: header.image, chunk: *index, count: *count, bytes: 0, kept }
        }
        Body::End => return None,
    };
    let end = unit.chunk.checked_add(unit.count)?;
    (end <= image.chunks).then_some(unit)
}
