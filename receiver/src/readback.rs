//! `--verify readback`: the disk itself is asked what it holds, before the copy takes its name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::control::Failure;
use proto::digest::Cv;
use proto::extents::{RunSet, is_zero};
use proto::geometry::ChunkSize;
use proto::granules;
use proto::leaves::leaf_hash;
use proto::manifest::ImageEntry;
use rustix::fs::{Advice, fadvise};
use tokio::task::JoinSet;

use crate::job::Receiving;

/// Reads in flight.
const DEPTH: usize = 8;

/// What must be on the disk: the hashes of all that was verified and written, about 100 bytes per
/// chunk. Everything else must read as zero.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// (image, chunk) → one hash per leaf, zero for a leaf without data.
    leaves: Mutex<BTreeMap<(u32, u64), Vec<Cv>>>,
    /// Per image, chunks that were read back before this job began to write.
    before: Vec<RunSet>,
}

impl Expected {
    /// For images of `sizes` of which `covered` granules were read back already.
    pub(crate) fn beside(covered: &[Arc<RunSet>], sizes: &[u64], chunk: ChunkSize) -> Expected {
        let chunks = |(covered, size): (&Arc<RunSet>, &u64)| {
            let mut set = RunSet::new();
            granules::chunks(covered, *size, chunk).for_each(|run| {
                set.insert_new(run);
            });
            set
        };
        Expected { before: covered.iter().zip(sizes).map(chunks).collect(), ..Expected::default() }
    }

    fn was_read(&self, image: u32, chunk: u64) -> bool {
        self.before.get(image as usize).is_some_and(|set| set.contains(chunk))
    }

    fn leaves(&self) -> MutexGuard<'_, BTreeMap<(u32, u64), Vec<Cv>>> {
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for the hashes of all chunks of these images, bytes: a leaf hash each and the tree
    /// that they are in.
    pub(crate) fn bytes<'a>(images: impl Iterator<Item = &'a ImageEntry>, chunk: ChunkSize) -> u64 {
        let each = 72 + 32 * chunk.leaves() as u64;
        images.map(|i| chunk.count(i.size).saturating_mul(each)).fold(0, u64::saturating_add)
    }

    pub(crate) fn note(&self, image: u32, chunk: u64, leaves: &[Cv]) {
        self.leaves().insert((image, chunk), leaves.to_vec());
    }

    /// The first chunk from `chunk` on that holds data.
    fn next(&self, image: u32, chunk: u64) -> Option<u64> {
        self.leaves().range((image, chunk)..=(image, u64::MAX)).next().map(|((_, chunk), _)| *chunk)
    }

    fn of(&self, image: u32, chunk: u64) -> Option<Vec<Cv>> {
        self.leaves().get(&(image, chunk)).cloned()
    }
}

/// Reads an image back, all of it that is not a hole, and compares. It was flushed before.
///
/// # Errors
/// Exit code 4 with the place of the first difference; 1 when the disk cannot be read.
pub(crate) async fn check(job: &Arc<Receiving>, image: u32, expected: &Expected) -> Result<(), Failure> {
    let part = &job.parts[image as usize];
    let broken = |e: blockio::Error| Failure::new(1, e.to_string());
    if !part.image.direct() {
        // As good as it gets: what was flushed leaves the page cache and is read anew.
        let _ = fadvise(part.image.file(), 0, None, Advice::DontNeed);
        let name = &part.entry.name;
        let said = format!("{name} was read back without O_DIRECT: the disk may have answered from a cache");
        part.say(vec![said]);
    }
    let bytes = u64::from(job.chunk.bytes());
    let count = job.chunk.count(part.entry.size);
    let mut reads: JoinSet<Result<(), Failure>> = JoinSet::new();
    let mut chunk = 0;
    while chunk < count {
        let on_disk =
            part.image.next_data(chunk * bytes).map_err(broken)?.map(|run| (run.start / bytes).max(chunk));
        let written = expected.next(image, chunk);
        let Some(next) = on_disk.into_iter().chain(written).min().filter(|next| *next < count) else { break };
        chunk = next + 1;
        if expected.was_read(image, next) {
            continue;
        }
        if reads.len() >= DEPTH
            && let Some(done) = reads.join_next().await
        {
            settled(done)?;
        }
        let (job, want) = (job.clone(), expected.of(image, next));
        reads.spawn(async move { one(&job, image, next, want).await });
    }
    while let Some(done) = reads.join_next().await {
        settled(done)?;
    }
    Ok(())
}

fn settled(done: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    done.unwrap_or_else(|e| Err(Failure::new(1, format!("a read task broke down: {e}"))))
}

async fn one(job: &Receiving, image: u32, chunk: u64, want: Option<Vec<Cv>>) -> Result<(), Failure> {
    let part = &job.parts[image as usize];
    let size = part.entry.size;
    let len = job.chunk.len_of(chunk, size) as usize;
    let start = chunk * u64::from(job.chunk.bytes());
    let buffer = job.pool.take().await;
    // A device has whole sectors, and the image may end within one.
    let sectors = len.next_multiple_of(part.image.align()).min(buffer.len());
    let (buffer, read) = job.engine.read(&part.image, buffer, start, sectors).await;
    let got = read.map_err(|e| Failure::new(1, e.to_string()))?;
    let leaf = job.chunk.leaf() as usize;
    for (i, at) in (0..len).step_by(leaf).enumerate() {
        let holds = &buffer[at.min(got)..(at + leaf).min(len).min(got)];
        let offset = start + at as u64;
        let due = want.as_ref().and_then(|leaves| leaves.get(i)).filter(|cv| **cv != [0; 32]);
        let whole = holds.len() == (at + leaf).min(len) - at;
        let fits = whole && due.map_or_else(|| is_zero(holds), |cv| leaf_hash(offset, holds, size) == *cv);
        if !fits {
            let name = &part.entry.name;
            let end = start + ((at + leaf).min(len)) as u64;
            let reason = format!(
                "{name}: the disk does not give back what was written to it, in bytes {offset} to {end}{}: check the disk (smartctl, dmesg)",
                part.not_kept()
            );
            return Err(Failure::new(4, reason));
        }
    }
    Ok(())
}
