//! One data lane: header, payload into an aligned buffer, verify, hand to the disk.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockio::Buffer;
use lanes::{Error, Lane};
use proto::control::{Failure, LaneId};
use proto::digest::Cv;
use proto::extents::BlockMap;
use proto::frame::{Body, HEADER_MAX, Header, header_len};
use proto::leaves::{ChunkHasher, chunk_leaves};
use proto::session::{Disposition, Unit};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::base;
use crate::job::Receiving;

/// Gaps inside a chunk shorter than this, bytes, are not worth a punch of their own.
const PUNCH_MIN: u32 = 32 << 10;

/// A chunk is hashed in steps of so many bytes while it arrives: they and what TLS holds fit a
/// core's cache (512 KiB and more), and BLAKE3 has enough to use all of its width.
const HASH_STEP: usize = 128 << 10;

/// Receives until the lane ends, or its sender has lost it (`lost`); returns when all its writes have
/// drained.
///
/// # Errors
/// What ends the whole job: bad data, a broken disk, a broken protocol; or that the connection broke.
pub(crate) async fn run(
    id: LaneId,
    mut lane: Lane,
    job: Arc<Receiving>,
    dead_after: Duration,
    lost: oneshot::Receiver<()>,
) -> Result<(), LaneEnd> {
    let mut writes: JoinSet<Result<(), Failure>> = JoinSet::new();
    lane.beat(dead_after);
    let mut result = tokio::select! {
        result = receive(id, &mut lane, &job, &mut writes) => result,
        _ = lost => Err(LaneEnd::Connection(Error::Closed)),
    };
    // Its sender sees at once that nothing more is taken. One that ended it waits for this until all is
    // written.
    let _ended = result.is_ok().then_some(lane);
    while let Some(done) = writes.join_next().await {
        if let Err(failure) = settled(done) {
            result = Err(LaneEnd::Job(failure));
        }
    }
    result
}

fn settled(done: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    done.unwrap_or_else(|e| Err(Failure::new(1, format!("a write task broke down: {e}"))))
}

/// Why a lane ended before its time.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    /// The connection broke.
    Connection(Error),
    /// The job cannot go on.
    Job(Failure),
}

impl From<Error> for LaneEnd {
    fn from(e: Error) -> LaneEnd {
        match e {
            e if e.is_damage() => LaneEnd::Job(Failure::new(4, e.to_string())),
            e => LaneEnd::Connection(e),
        }
    }
}

impl From<Failure> for LaneEnd {
    fn from(f: Failure) -> LaneEnd {
        LaneEnd::Job(f)
    }
}

async fn receive(
    id: LaneId,
    lane: &mut Lane,
    job: &Arc<Receiving>,
    writes: &mut JoinSet<Result<(), Failure>>,
) -> Result<(), LaneEnd> {
    let chunk = job.chunk;
    let mut head = [0u8; HEADER_MAX];
    let head = &mut head[..header_len(chunk)];
    let broken =
        |what: &dyn std::fmt::Display| Failure::new(1, format!("the sender broke the protocol: {what}"));
    loop {
        let waiting = Instant::now();
        lane.meanwhile(job.window.room()).await?;
        let mut buffer = lane.meanwhile(job.pool.take()).await?;
        job.meter.buffer_wait.since(waiting);
        let waiting = Instant::now();
        {
            let mut arriving = pin!(lane.receive_header(head));
            // Writes that have ended are let go of here, since an image may have millions of chunks; and
            // one that failed is noticed though nothing more may come.
            loop {
                tokio::select! {
                    arrived = &mut arriving => break arrived?,
                    Some(done) = writes.join_next() => settled(done)?,
                }
            }
        }
        let header = Header::decode(chunk, head).map_err(|e| broken(&e))?;
        let disposition = job.session().frame(id, &header).map_err(|e| broken(&e))?;
        let unit = match disposition {
            Disposition::End => return Ok(()),
            Disposition::Write(unit) => Some(unit),
            Disposition::Drop => None,
        };
        let Body::Data { map, leaves, ahead, wire_len, .. } = &header.body else {
            if let Some(unit) = unit {
                let job = job.clone();
                let bytes = u64::from(chunk.bytes());
                drop(buffer);
                writes.spawn(async move {
                    let part = &job.parts[unit.image as usize];
                    let start = unit.chunk * bytes;
                    let end = (unit.chunk + unit.count).saturating_mul(bytes).min(part.entry.size);
                    match &header.body {
                        Body::Keep { leaves, .. } => job.keep(unit, leaves).await?,
                        _ => {
                            let cleared = part.clear(&job.engine, start, end).await;
                            cleared.map_err(|e| Failure::new(1, e.to_string()))?;
                        }
                    }
                    job.written(id, &header);
                    Ok(())
                });
            }
            continue;
        };
        let Some(unit) = unit else {
            lane.receive(&mut buffer[..*wire_len as usize]).await?;
            continue;
        };
        let part = &job.parts[unit.image as usize];
        let len = chunk.len_of(unit.chunk, part.entry.size);
        let mut hasher = ChunkHasher::new(part.entry.size, chunk, unit.chunk, map);
        let hashing = fill(lane, &mut buffer[..len as usize], map, &mut hasher).await?;
        job.meter.receive_wait.took(waiting.elapsed().saturating_sub(hashing));
        job.meter.hash.took(hashing);
        job.meter.received_bytes.add(u64::from(unit.bytes));
        let found = hasher.finish();
        if found != *leaves {
            let at = unit.chunk * u64::from(chunk.bytes());
            let name = &part.entry.name;
            let reason = format!("{name}: the data at byte {at} arrived damaged; nothing of it was written");
            return Err(Failure::new(4, reason).into());
        }
        if let Some(expected) = &job.readback {
            expected.note(unit.image, unit.chunk, &found);
        }
        if let Some(base) = &job.bases[unit.image as usize] {
            base.replaced(unit.chunk);
        }
        let (map, ahead) = (*map, *ahead);
        let job = job.clone();
        writes.spawn(async move {
            let write = Write { image: unit.image, chunk: unit.chunk, len, ahead };
            job.write(write, &map, buffer).await.map_err(|e| Failure::new(1, e.to_string()))?;
            job.written(id, &header);
            Ok(())
        });
    }
}

/// Receives the map's runs to their places and blanks the rest, which is hashed as zero. Returns
/// the time that the hashes took.
async fn fill(
    lane: &mut Lane,
    buffer: &mut [u8],
    map: &BlockMap,
    hasher: &mut ChunkHasher<'_>,
) -> Result<Duration, Error> {
    let mut hashing = Duration::ZERO;
    let mut hash = |bytes: &[u8]| {
        let started = Instant::now();
        hasher.grow(bytes);
        hashing += started.elapsed();
    };
    let (mut at, mut hashed) = (0, 0);
    for run in map.runs(buffer.len() as u32) {
        let run = run.start as usize..run.end as usize;
        buffer[at..run.start].fill(0);
        at = run.start;
        while at < run.end {
            // As much as is there, in one call; then everything that is complete.
            at += lane.receive_some(&mut buffer[at..run.end]).await?;
            let complete = at / HASH_STEP * HASH_STEP;
            if complete > hashed {
                hash(&buffer[..complete]);
                hashed = complete;
            }
        }
    }
    buffer[at..].fill(0);
    hash(buffer);
    Ok(hashing)
}

/// One chunk on its way to the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    image: u32,
    chunk: u64,
    /// Bytes of the image in this chunk.
    len: u32,
    ahead: u32,
}

impl Receiving {
    /// What the destination has already: it is there, or is copied from beside.
    async fn keep(&self, unit: Unit, leaves: &[Cv]) -> Result<(), Failure> {
        let broken =
            || Failure::new(1, "the sender broke the protocol: it keeps what is not there".to_owned());
        let base = self.bases[unit.image as usize].as_ref().ok_or_else(broken)?;
        if leaves.is_empty() {
            return if base.keeps_zeros(unit.chunk, unit.count) { Ok(()) } else { Err(broken()) };
        }
        if !base.keeps(unit.chunk, leaves) {
            return Err(broken());
        }
        if let Some(expected) = &self.readback {
            expected.note(unit.image, unit.chunk, leaves);
        }
        let Some(old) = &base.beside else { return Ok(()) };
        let failed = |e: blockio::Error| Failure::new(1, e.to_string());
        let size = self.parts[unit.image as usize].entry.size;
        let len = self.chunk.len_of(unit.chunk, size);
        let offset = unit.chunk * u64::from(self.chunk.bytes());
        let buffer = self.pool.take().await;
        let (buffer, got) = self.engine.read(old, buffer, offset, len as usize).await;
        let bytes = &buffer[..len as usize];
        let map = base::data_map(bytes);
        // Read a second time: somebody may have changed it since.
        if got.map_err(failed)? < len as usize
            || chunk_leaves(size, self.chunk, unit.chunk, &map, bytes) != leaves
        {
            let path = old.path().display();
            let reason = format!("{path} changed while it was copied: stop what writes it and send again");
            return Err(Failure::new(1, reason));
        }
        let write = Write { image: unit.image, chunk: unit.chunk, len, ahead: 0 };
        self.write(write, &map, buffer).await.map_err(failed)
    }

    async fn write(&self, w: Write, map: &BlockMap, mut buffer: Buffer) -> Result<(), blockio::Error> {
        let part = &self.parts[w.image as usize];
        let bytes = u64::from(self.chunk.bytes());
        let offset = w.chunk * bytes;
        if w.ahead > 0 {
            let end = (offset + bytes * (1 + u64::from(w.ahead))).min(part.entry.size);
            part.reserve(&self.engine, offset, end).await?;
        }
        let align = part.image.align();
        let mut segments = segments(map, w.len, align);
        part.fit(&mut segments, w.len);
        // The alignment may reach past the image's end into what the buffer held before.
        let end = segments.last().map_or(0, |s| s.end);
        if end > w.len as usize {
            buffer[w.len as usize..end].fill(0);
        }
        let gaps = gaps(&segments, w.len);
        part.touch(offset);
        let started = Instant::now();
        let (buffer, written) = self.engine.write(&part.image, buffer, offset, segments).await;
        drop(buffer);
        written?;
        self.meter.write.since(started);
        self.meter.written_bytes.add(u64::from(map.data_bytes(w.len)));
        for gap in gaps {
            part.clear(&self.engine, offset + u64::from(gap.start), offset + u64::from(gap.end)).await?;
        }
        Ok(())
    }
}

/// The map's runs widened to the alignment and merged: what is written.
fn segments(map: &BlockMap, len: u32, align: usize) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for run in map.runs(len) {
        let start = run.start as usize / align * align;
        let end = (run.end as usize).next_multiple_of(align);
        match out.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => out.push(start..end),
        }
    }
    out
}

/// What lies between the segments of a chunk and is worth freeing.
fn gaps(segments: &[Range<usize>], len: u32) -> Vec<Range<u32>> {
    let mut out = Vec::new();
    let mut at = 0;
    let ends = segments.iter().cloned().chain(std::iter::once(len as usize..len as usize));
    for segment in ends {
        let gap = at..segment.start.min(len as usize) as u32;
        if gap.end.saturating_sub(gap.start) >= PUNCH_MIN {
            out.push(gap);
        }
        at = segment.end.min(len as usize) as u32;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_aligned_and_merged() {
        let mut map = BlockMap::EMPTY;
        map.set(0..1);
        map.set(3..4);
        map.set(16..17);
        assert_eq!(segments(&map, 17 * 4096 - 5, 4096), [0..4096, 3 * 4096..4 * 4096, 16 * 4096..17 * 4096]);
        assert_eq!(segments(&map, 17 * 4096, 16384), [0..16384, 65536..81920]);
    }

    #[test]
    fn gaps_are_what_is_left() {
        let segments = [8192..16384, 65536..69632];
        assert_eq!(gaps(&segments, 131_072), [16384..65536, 69632..131_072]);
        assert_eq!(gaps(&segments[..1], 100), []);
        assert_eq!(gaps(&[], 1 << 20).iter().map(ExactSizeIterator::len).sum::<usize>(), 1 << 20);
    }
}
