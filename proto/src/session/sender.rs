//! The sender's side: what is on which lane, what is acknowledged, what must be sent again.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{Unit, Violation};
use crate::control::{LaneAck, LaneId, ToReceiver};

/// Bytes and units of the job so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Payload bytes put on lanes, resends included.
    pub sent: u64,
    /// Of these, bytes that had been put on a lane before.
    pub resent: u64,
    /// Payload bytes acknowledged as written.
    pub written: u64,
    /// Payload bytes acknowledged as durable.
    pub durable: u64,
}

#[derive(Debug, Default)]
struct Lane {
    /// Units from `durable` on, oldest first.
    open: VecDeque<Unit>,
    sent: u64,
    written: u64,
    durable: u64,
    /// Nothing is sent on it any more; what it did not bring over comes back when it is closed.
    lost: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Image {
    planned_all: bool,
    finishing: bool,
    /// What the receiver was told at the end.
    announced: Option<[u8; 32]>,
    committed: bool,
    unwritten: u64,
}

/// The sender's state of one session.
#[derive(Debug)]
pub struct SenderSession {
    epoch: u32,
    lanes: BTreeMap<LaneId, Lane>,
    images: Vec<Image>,
    /// Units given back by closed lanes that are not yet sent again.
    returned: Vec<Unit>,
    totals: Totals,
}

impl SenderSession {
    /// A session over `images` images in attempt `epoch`.
    pub fn new(epoch: u32, images: usize) -> SenderSession {
        SenderSession {
            epoch,
            lanes: BTreeMap::new(),
            images: vec![Image::default(); images],
            returned: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// The attempt, for frame headers.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A new data lane; its id was never used before in this session.
    pub fn open_lane(&mut self) -> LaneId {
        let id = LaneId(self.lanes.last_key_value().map_or(1, |(id, _)| id.0 + 1));
        self.lanes.insert(id, Lane::default());
        id
    }

    /// A unit of `image` exists and will be sent.
    pub fn plan(&mut self, image: u32) {
        if let Some(image) = self.images.get_mut(image as usize) {
            image.unwritten += 1;
        }
    }

    /// Every unit of `image` was planned.
    pub fn plan_end(&mut self, image: u32) {
        if let Some(image) = self.images.get_mut(image as usize) {
            image.planned_all = true;
        }
    }

    /// `image` is in place since an earlier attempt: nothing of it is sent.
    pub fn skip(&mut self, image: u32) {
        if let Some(image) = self.images.get_mut(image as usize) {
            (image.planned_all, image.finishing) = (true, true);
        }
    }

    /// Puts a planned unit on a lane: the sequence for its header.
    ///
    /// # Errors
    /// [`Violation::UnknownLane`] when the lane is lost, closed or was never opened.
    pub fn assign(&mut self, id: LaneId, unit: Unit) -> Result<u64, Violation> {
        let lane = self.lanes.get_mut(&id).filter(|l| !l.lost && !l.closed);
        let lane = lane.ok_or(Violation::UnknownLane(id))?;
        lane.open.push_back(unit);
        let seq = lane.sent;
        lane.sent += 1;
        self.totals.sent += u64::from(unit.bytes);
        if let Some(at) = self.returned.iter().position(|u| (u.image, u.chunk) == (unit.image, unit.chunk)) {
            self.returned.swap_remove(at);
            self.totals.resent += u64::from(unit.bytes);
        }
        Ok(seq)
    }

    /// Frames put on a lane so far: the sequence of its next one.
    pub fn sent_on(&self, id: LaneId) -> u64 {
        self.lanes.get(&id).map_or(0, |l| l.sent)
    }

    /// Takes in an acknowledgement. Marks that go back are old news and change nothing.
    ///
    /// # Errors
    /// [`Violation`] when it speaks of an unknown lane or of frames that were never sent.
    pub fn acknowledge(&mut self, ack: LaneAck) -> Result<(), Violation> {
        let lane = self.lanes.get_mut(&ack.lane).ok_or(Violation::UnknownLane(ack.lane))?;
        if ack.written > lane.sent || ack.durable > ack.written {
            return Err(Violation::AckBeyondSent(ack.lane));
        }
        // The front of `open` is the first frame that is not durable.
        for seq in lane.written..ack.written {
            let unit = lane.open[(seq - lane.durable) as usize];
            self.totals.written += u64::from(unit.bytes);
            if let Some(image) = self.images.get_mut(unit.image as usize) {
                image.unwritten -= 1;
            }
        }
        lane.written = lane.written.max(ack.written);
        while lane.durable < ack.durable {
            if let Some(unit) = lane.open.pop_front() {
                self.totals.durable += u64::from(unit.bytes);
            }
            lane.durable += 1;
        }
        Ok(())
    }

    /// The lane broke, or its join failed. Its units come back with [`SenderSession::close_lane`].
    pub fn lose_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.lost = true;
        }
    }

    /// Whether nothing more will be heard of this lane but that its frames are durable.
    pub fn is_closed(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_none_or(|l| l.closed)
    }

    /// The lane is gone and its writes have drained: the units that must be sent again. Said twice, it
    /// gives nothing back.
    ///
    /// # Errors
    /// As [`SenderSession::acknowledge`].
    pub fn close_lane(&mut self, last: LaneAck) -> Result<Vec<Unit>, Violation> {
        self.acknowledge(last)?;
        let lane = self.lanes.get_mut(&last.lane).ok_or(Violation::UnknownLane(last.lane))?;
        lane.closed = true;
        let keep = (lane.written - lane.durable) as usize;
        let lost: Vec<Unit> = lane.open.drain(keep..).collect();
        lane.sent = lane.written;
        self.returned.extend(&lost);
        Ok(lost)
    }

    /// Images all of whose units are written and that were not announced yet; each is returned once.
    pub fn take_finished(&mut self) -> Vec<u32> {
        let mut ready = Vec::new();
        for (i, image) in (0u32..).zip(&mut self.images) {
            if image.planned_all && image.unwritten == 0 && !image.finishing {
                image.finishing = true;
                ready.push(i);
            }
        }
        ready
    }

    /// Every unit of every image is planned and written: no lane is needed any more.
    pub fn all_written(&self) -> bool {
        self.images.iter().all(|i| i.planned_all && i.unwritten == 0)
    }

    /// The image is finished, with this tree digest: what to say.
    pub fn announce(&mut self, image: u32, tree: [u8; 32]) -> ToReceiver {
        if let Some(image) = self.images.get_mut(image as usize) {
            image.announced = Some(tree);
        }
        ToReceiver::Finish { image, tree }
    }

    /// What may have been lost with a control connection, to be said on the next one.
    pub fn unanswered(&self) -> Vec<ToReceiver> {
        let lost = self.lanes.iter().filter(|(_, l)| l.lost && !l.closed);
        let finished = (0u32..).zip(&self.images).filter(|(_, i)| !i.committed);
        let finished =
            finished.filter_map(|(image, i)| Some(ToReceiver::Finish { image, tree: i.announced? }));
        lost.map(|(id, _)| ToReceiver::LaneLost(*id)).chain(finished).collect()
    }

    /// The receiver has put the image in place. Whether that is news.
    ///
    /// # Errors
    /// [`Violation::NotComplete`] when it was never announced as finished.
    pub fn committed(&mut self, image: u32) -> Result<bool, Violation> {
        match self.images.get_mut(image as usize) {
            Some(i) if i.finishing => Ok(!std::mem::replace(&mut i.committed, true)),
            _ => Err(Violation::NotComplete { image }),
        }
    }

    /// Whether every image is in place.
    pub fn is_done(&self) -> bool {
        self.images.iter().all(|i| i.committed)
    }

    /// Bytes so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Units sent on open lanes that are not acknowledged as written.
    pub fn in_flight(&self) -> u64 {
        self.lanes.values().map(|l| l.sent - l.written).sum()
    }
}
