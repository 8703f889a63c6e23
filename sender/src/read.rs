//! The reader: plan → buffers → hashes → ready queue.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use blockio::{Buffer, Engine, Pool};
use proto::control::{Earlier, Failure};
use proto::digest::{B3_ZERO_LIMIT, Cv};
use proto::extents::BlockMap;
use proto::geometry::{BLOCK, ChunkSize};
use proto::leaves::chunk_leaves;
use proto::session::Unit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::digest::Digester;
use crate::found::Older;
use crate::job::Shared;
use crate::known::{Known, Line};
use crate::plan::{Work, walk, zero_granules};
use crate::source::Source;

/// Reads in flight. More only add latency on the disks measured (depth 4-8 saturates them).
pub(crate) const DEPTH: usize = 8;
/// Reads that the engine holds besides, so that it starts the next ones by itself. A disk often
/// ends all of [`DEPTH`] at once; every core is busy hashing them then, and who would ask for more
/// gets no turn: without these the disk stood still for a tenth of the time.
pub(crate) const WAITING: usize = 4;
/// Steps that the plan may be ahead of the reader.
const PLAN_AHEAD: usize = 64;

/// A unit that may be sent.
#[derive(Debug)]
pub(crate) enum Ready {
    Data {
        unit: Unit,
        ahead: u32,
        map: BlockMap,
        leaves: Vec<[u8; 32]>,
        buffer: Buffer,
    },
    Zero {
        unit: Unit,
    },
    /// The destination has it already.
    Keep {
        unit: Unit,
        leaves: Vec<Cv>,
    },
}

/// A chunk to be read.
struct Step {
    image: u32,
    chunk: u64,
    extents: BlockMap,
    ahead: u32,
    /// What the destination has there.
    there: Option<Vec<Cv>>,
}

/// What the reader needs of the job.
#[derive(Clone)]
pub(crate) struct Reader {
    pub(crate) sources: Arc<[Source]>,
    pub(crate) chunk: ChunkSize,
    pub(crate) no_holes: bool,
    pub(crate) engine: Engine,
    pub(crate) pool: Pool,
    pub(crate) digester: Digester,
    pub(crate) ready: async_channel::Sender<Ready>,
    pub(crate) shared: Arc<Shared>,
}

impl Reader {
    /// Reads everything that the destination does not have from an `earlier` attempt, and fills the
    /// ready queue; returns when the last unit is in it.
    pub(crate) async fn run(self, earlier: Vec<Earlier>, mut line: Line) -> Result<(), Failure> {
        let (steps, mut plan) = mpsc::channel(PLAN_AHEAD);
        let (sources, chunk, no_holes) = (self.sources.clone(), self.chunk, self.no_holes);
        let complete = |i: u32| matches!(earlier.get(i as usize), Some(Earlier::Complete { .. }));
        let wanted: Vec<u32> = (0u32..).take(sources.len()).filter(|i| !complete(*i)).collect();
        // SEEK_DATA may read metadata from the disk, so the walk has a thread.
        let digester = self.digester.clone();
        let walker = tokio::task::spawn_blocking(move || {
            wanted.into_iter().try_for_each(|i| {
                let source = &sources[i as usize];
                // Only such an image can have more zeros than are hashed.
                if source.entry().size > B3_ZERO_LIMIT && !no_holes {
                    digester.expect_zeros(i, zero_granules(source)?);
                }
                walk(i, source, chunk, no_holes, |step| steps.blocking_send(step).is_ok())
            })
        });
        let depth = Arc::new(Semaphore::new(DEPTH + WAITING));
        let mut reads: JoinSet<Result<(), Failure>> = JoinSet::new();
        let begin = |image: u32| {
            let earlier = earlier.get(image as usize);
            let durable = matches!(earlier, Some(Earlier::Durable { .. }));
            let known = Known::begin(image, durable, chunk, self.digester.clone());
            (known, Older::begin(image, matches!(earlier, Some(Earlier::Older))))
        };
        let (mut known, mut older) = begin(0);
        while let Some(step) = plan.recv().await {
            while let Some(done) = reads.try_join_next() {
                settled(done)?;
            }
            match step {
                Work::Begin { image } => (known, older) = begin(image),
                Work::Hole { image, chunk, count } => {
                    let mut left = chunk..chunk + count;
                    while !left.is_empty() {
                        let (there, part) = known.first(left.clone(), &mut line).await?;
                        if there {
                            left.start = part.end;
                            self.resumed(image, part);
                            continue;
                        }
                        let (zero, part) = older.first(part, &mut line).await?;
                        left.start = part.end;
                        self.shared.session().plan(image);
                        let count = part.end - part.start;
                        let unit = Unit { image, chunk: part.start, count, bytes: 0, kept: zero };
                        self.zero(unit).await;
                    }
                }
                Work::Data { image, chunk, .. } if known.first(chunk..chunk + 1, &mut line).await?.0 => {
                    self.resumed(image, chunk..chunk + 1);
                }
                Work::Data { image, chunk, extents, ahead } => {
                    let there = older.chunk(chunk, &mut line).await?;
                    self.shared.meter.reading_starts();
                    let waiting = Instant::now();
                    let buffer = self.pool.take().await;
                    self.shared.meter.buffer_wait.since(waiting);
                    let Ok(turn) = depth.clone().acquire_owned().await else { break };
                    self.shared.session().plan(image);
                    let this = self.clone();
                    let step = Step { image, chunk, extents, ahead, there };
                    reads.spawn(async move { this.chunk(step, buffer, turn).await });
                }
                Work::End { image } => {
                    known.finish(&mut line).await?;
                    self.shared.session().plan_end(image);
                    self.shared.progressed.notify_one();
                }
            }
        }
        while let Some(done) = reads.join_next().await {
            settled(done)?;
        }
        match walker.await {
            Ok(done) => done.map_err(|e| Failure::new(1, e.to_string())),
            Err(e) => Err(Failure::new(1, format!("the planner broke down: {e}"))),
        }
    }

    fn resumed(&self, image: u32, chunks: Range<u64>) {
        let (size, bytes) = (self.sources[image as usize].entry().size, u64::from(self.chunk.bytes()));
        let end = (chunks.end * bytes).min(size);
        self.shared.meter.resumed_bytes.add(end - chunks.start * bytes);
    }

    async fn zero(&self, unit: Unit) {
        let source = &self.sources[unit.image as usize];
        let per_chunk = self.chunk.leaves() as u64;
        self.digester.zeros(unit.image, unit.chunk * per_chunk, unit.count * per_chunk);
        let start = unit.chunk * u64::from(self.chunk.bytes());
        let covered = unit.count * u64::from(self.chunk.bytes());
        self.shared.meter.zero_bytes.add(covered.min(source.entry().size - start));
        let ready = if unit.kept { Ready::Keep { unit, leaves: Vec::new() } } else { Ready::Zero { unit } };
        let _ = self.ready.send(ready).await;
    }

    async fn chunk(&self, step: Step, buffer: Buffer, turn: OwnedSemaphorePermit) -> Result<(), Failure> {
        let Step { image, chunk, extents, ahead, there } = step;
        let meter = &self.shared.meter;
        let source = &self.sources[image as usize];
        let size = source.entry().size;
        let len = self.chunk.len_of(chunk, size);
        let offset = chunk * u64::from(self.chunk.bytes());
        let started = Instant::now();
        let (mut buffer, read) = self.engine.read(&source.image, buffer, offset, len as usize).await;
        meter.read.since(started);
        // The disk goes on while this chunk is hashed.
        drop(turn);
        let got = read.map_err(|e| Failure::new(1, e.to_string()))?;
        if got < len as usize {
            source.check_unchanged()?;
            let path = source.image.path().display();
            let reason = format!("{path} ended at byte {} of {size} while it was read", offset + got as u64);
            return Err(Failure::new(1, reason));
        }
        meter.read_bytes.add(u64::from(len));

        let started = Instant::now();
        let map = crate::scan::data_map(&buffer[..len as usize], &extents);
        let bytes = map.data_bytes(len);
        let unit = Unit { image, chunk, count: 1, bytes, kept: false };
        if bytes == 0 {
            meter.hash.since(started);
            self.zero(Unit { kept: there.is_some_and(|leaves| leaves.is_empty()), ..unit }).await;
            return Ok(());
        }
        meter.zero_bytes.add(u64::from(len - bytes));
        blank_outside(&mut buffer[..len as usize], &map);
        let leaves = chunk_leaves(size, self.chunk, chunk, &map, &buffer[..len as usize]);
        let blocks = (self.chunk.leaf() / BLOCK) as usize;
        let present = (0..len.div_ceil(self.chunk.leaf()) as usize)
            .map(|i| map.any(i * blocks..(i + 1) * blocks).then(|| leaves[i]))
            .collect();
        self.digester.leaves(image, chunk * self.chunk.leaves() as u64, present);
        meter.hash.since(started);
        if there.is_some_and(|there| there == leaves) {
            meter.resumed_bytes.add(u64::from(bytes));
            let unit = Unit { bytes: 0, kept: true, ..unit };
            let _ = self.ready.send(Ready::Keep { unit, leaves }).await;
            return Ok(());
        }
        let _ = self.ready.send(Ready::Data { unit, ahead, map, leaves, buffer }).await;
        Ok(())
    }
}

/// What is outside the map is hashed as zero. It is zero already unless somebody wrote into a hole
/// after the extents were read; then the hash must still fit what is sent, and the change itself
/// is found at the end.
fn blank_outside(bytes: &mut [u8], map: &BlockMap) {
    let len = bytes.len() as u32; // at most one chunk
    let mut at = 0;
    for run in map.runs(len) {
        bytes[at..run.start as usize].fill(0);
        at = run.end as usize;
    }
    bytes[at..].fill(0);
}

pub(crate) fn settled(done: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    done.unwrap_or_else(|e| Err(Failure::new(1, format!("a read task broke down: {e}"))))
}
