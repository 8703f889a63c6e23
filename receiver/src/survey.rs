//! A survey: what lies in an image on this host, hashed leaf by leaf in the order of the image.
//!
//! Goals: as fast as the disk reads and one core hashes, past the page cache, in the memory of the
//! pool; zeros count as zeros, whether written or a hole. Non-goals: who asks and why (verification,
//! delta, resume), whether the image may be looked at, whether it changed meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use blockio::{Engine, Image, Pool};
use proto::control::{Failure, Piece};
use proto::digest::Cv;
use proto::extents::is_zero;
use proto::geometry::ChunkSize;
use proto::leaves::leaf_hash;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// Reads in flight. A pool of so many buffers keeps them all busy; fewer work too.
pub const DEPTH: usize = 8;

/// What to look at, and how.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Size in bytes that the image is taken to have: at most what it has. A device may be larger
    /// than the image on it.
    pub size: u64,
    /// The unit that is read and told; buffers of the pool must be as large.
    pub chunk: ChunkSize,
    /// Which chunks.
    pub chunks: Range<u64>,
    /// Whom to believe about holes.
    pub holes: Holes,
}

/// File systems say where holes are (SEEK_DATA and SEEK_HOLE of `lseek(2)`), and may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holes {
    /// What is called a hole is not read. The image must have been flushed before
    /// ([`Image::sync_before_map`]).
    Trusted,
    /// Everything is read.
    Read,
}

/// A survey under way. It reads [`DEPTH`] chunks ahead of whoever asks, and no further. Dropping it
/// ends it.
#[derive(Debug)]
pub struct Survey {
    image: Image,
    engine: Engine,
    pool: Pool,
    scope: Scope,
    /// The first chunk that is not planned.
    next: u64,
    /// Data that the file system told of last, bytes.
    extent: Range<u64>,
    /// Planned, in order, from chunk `front` on.
    steps: VecDeque<Step>,
    front: u64,
    reading: usize,
    /// Chunks before `front` that read as zero; more may follow.
    zeros: u64,
    /// Comes after the zeros before it.
    held: Option<Piece>,
}

#[derive(Debug)]
enum Step {
    Hole(u64),
    Read(JoinHandle<Result<Vec<Cv>, Failure>>),
}

impl Scope {
    /// All of an image, in chunks of this size.
    pub fn whole(image: &Image, chunk: ChunkSize, holes: Holes) -> Scope {
        Scope { size: image.size(), chunk, chunks: 0..chunk.count(image.size()), holes }
    }
}

impl Survey {
    /// Starts nothing yet. Chunks past the size are left out.
    pub fn new(image: &Image, engine: &Engine, pool: &Pool, mut scope: Scope) -> Survey {
        scope.chunks.end = scope.chunks.end.min(scope.chunk.count(scope.size));
        let start = scope.chunks.start;
        Survey {
            image: image.clone(),
            engine: engine.clone(),
            pool: pool.clone(),
            scope,
            next: start,
            extent: 0..0,
            steps: VecDeque::new(),
            front: start,
            reading: 0,
            zeros: 0,
            held: None,
        }
    }

    /// Bytes of the scope that were looked at, of which zeros may not be told yet.
    pub fn done(&self) -> u64 {
        let at = |chunk| u64::min(chunk * u64::from(self.scope.chunk.bytes()), self.scope.size);
        at(self.front).saturating_sub(at(self.scope.chunks.start))
    }

    /// The next piece, in the order of the image; `None`: that was all. May be dropped and called
    /// again.
    ///
    /// # Errors
    /// Exit code 1 and a sentence with path and byte offset: what the disk says, or that the image
    /// is shorter than it was. Nothing follows an error.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        if let Some(found) = self.held.take() {
            return Ok(Some(found));
        }
        loop {
            self.plan().await?;
            let chunk = self.front;
            let leaves = match self.steps.front_mut() {
                None => return self.end(),
                Some(Step::Hole(count)) => {
                    (self.zeros, self.front) = (self.zeros + *count, self.front + *count);
                    self.steps.pop_front();
                    continue;
                }
                Some(Step::Read(task)) => task.await.map_err(broke)??,
            };
            self.steps.pop_front();
            self.reading -= 1;
            self.front += 1;
            if leaves.iter().all(|leaf| *leaf == [0; 32]) {
                self.zeros += 1;
                continue;
            }
            let data = Piece::Data { chunk, leaves };
            return Ok(Some(match self.take_zeros(chunk) {
                None => data,
                Some(zeros) => {
                    self.held = Some(data);
                    zeros
                }
            }));
        }
    }

    /// The zeros before a chunk, if any.
    fn take_zeros(&mut self, before: u64) -> Option<Piece> {
        let count = std::mem::take(&mut self.zeros);
        (count > 0).then(|| Piece::Zero { chunk: before - count, count })
    }

    fn end(&mut self) -> Result<Option<Piece>, Failure> {
        // The hole map of a file that was cut off calls what is missing a hole.
        let now = self.image.identity().map_err(|e| Failure::new(1, e.to_string()))?.size;
        if now < self.scope.size {
            return Err(ended(&self.image, now, self.scope.size));
        }
        Ok(self.take_zeros(self.front))
    }

    /// Keeps enough reads under way.
    async fn plan(&mut self) -> Result<(), Failure> {
        while self.reading < DEPTH && self.next < self.scope.chunks.end {
            let hole = self.hole().await?;
            if hole > 0 {
                self.steps.push_back(Step::Hole(hole));
                self.next += hole;
                continue;
            }
            let (image, engine, pool) = (self.image.clone(), self.engine.clone(), self.pool.clone());
            let (size, chunk, index) = (self.scope.size, self.scope.chunk, self.next);
            let task = tokio::spawn(async move { read(&image, &engine, &pool, size, chunk, index).await });
            self.steps.push_back(Step::Read(task));
            self.reading += 1;
            self.next += 1;
        }
        Ok(())
    }

    /// How many chunks, from the next one on, the file system calls a hole.
    async fn hole(&mut self) -> Result<u64, Failure> {
        if self.scope.holes == Holes::Read {
            return Ok(0);
        }
        let bytes = u64::from(self.scope.chunk.bytes());
        let at = self.next * bytes;
        if self.extent.end <= at {
            let image = self.image.clone();
            // SEEK_DATA may read metadata from the disk.
            let data = spawn_blocking(move || image.next_data(at)).await.map_err(broke)?;
            let data = data.map_err(|e| Failure::new(1, e.to_string()))?;
            self.extent = data.unwrap_or(u64::MAX..u64::MAX);
        }
        let data = (self.extent.start / bytes).min(self.scope.chunks.end);
        Ok(data.saturating_sub(self.next))
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        for step in &self.steps {
            if let Step::Read(task) = step {
                task.abort();
            }
        }
    }
}

/// Reads and hashes one chunk.
async fn read(
    image: &Image,
    engine: &Engine,
    pool: &Pool,
    size: u64,
    chunk: ChunkSize,
    index: u64,
) -> Result<Vec<Cv>, Failure> {
    let (start, len) = (index * u64::from(chunk.bytes()), chunk.len_of(index, size) as usize);
    let buffer = pool.take().await;
    // A device has whole sectors, and the image may end within one.
    let whole = len.next_multiple_of(image.align()).min(buffer.len()).max(len);
    let (buffer, got) = engine.read(image, buffer, start, whole).await;
    let got = got.map_err(|e| Failure::new(1, e.to_string()))?;
    if got < len {
        return Err(ended(image, start + got as u64, size));
    }
    let mut leaves = vec![[0; 32]; chunk.leaves()];
    for (i, leaf) in buffer[..len].chunks(chunk.leaf() as usize).enumerate() {
        if !is_zero(leaf) {
            leaves[i] = leaf_hash(start + i as u64 * u64::from(chunk.leaf()), leaf, size);
        }
    }
    Ok(leaves)
}

fn ended(image: &Image, at: u64, size: u64) -> Failure {
    let path = image.path().display();
    Failure::new(1, format!("{path} ended at byte {at} of {size} while it was read: stop what changes it"))
}

fn broke(e: JoinError) -> Failure {
    Failure::new(1, format!("a read task broke down: {e}"))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // ranges of bytes that hold data
mod tests {
    use super::*;
    use blockio::EngineChoice;
    use proto::digest::ImageDigest;
    use proto::granules::{Content, Granules, Run};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    /// A file of `size` bytes with bytes that are not zero in these places.
    fn file(path: &Path, size: u64, data: &[Range<u64>]) -> File {
        let file = File::create(path).unwrap();
        file.set_len(size).unwrap();
        for range in data {
            let bytes: Vec<u8> = range.clone().map(|at| (at % 251) as u8 + 1).collect();
            file.write_all_at(&bytes, range.start).unwrap();
        }
        file
    }

    fn engine(chunk: ChunkSize, buffers: usize) -> (Engine, Pool) {
        let pool = Pool::new(buffers, chunk.bytes() as usize).unwrap();
        (Engine::start(EngineChoice::Auto, DEPTH as u32, &pool).unwrap(), pool)
    }

    fn scope(image: &Image, chunk: &str, holes: Holes) -> Scope {
        Scope::whole(image, chunk.parse().unwrap(), holes)
    }

    fn run(image: &Image, scope: &Scope) -> Result<Vec<Piece>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (engine, pool) = engine(scope.chunk, 3);
            let mut survey = Survey::new(image, &engine, &pool, scope.clone());
            let mut all = Vec::new();
            while let Some(found) = survey.next().await? {
                all.push(found);
            }
            let bytes = u64::from(scope.chunk.bytes());
            let end = (scope.chunks.end * bytes).min(scope.size);
            assert_eq!(survey.done(), end.saturating_sub(scope.chunks.start * bytes));
            Ok(all)
        })
    }

    /// Pieces in order, zeros in maximal runs, every chunk once.
    #[track_caller]
    fn well_formed(found: &[Piece], chunks: Range<u64>) {
        let mut next = chunks.start;
        let mut zeros_before = false;
        for piece in found {
            let (chunk, count, zeros) = match piece {
                Piece::Data { chunk, .. } => (*chunk, 1, false),
                Piece::Zero { chunk, count } => (*chunk, *count, true),
            };
            assert_eq!(chunk, next);
            assert!(count > 0 && !(zeros && zeros_before), "{found:?}");
            (next, zeros_before) = (next + count, zeros);
        }
        assert_eq!(next, chunks.end);
    }

    fn b3(found: &[Piece], size: u64, chunk: ChunkSize) -> [u8; 32] {
        let (mut granules, mut digest) = (Granules::new(size, chunk), ImageDigest::new(size, u64::MAX));
        let leaf = |chunk_index: u64| chunk_index * chunk.leaves() as u64;
        for piece in found {
            match piece {
                Piece::Zero { chunk, count } => {
                    granules.zeros(leaf(*chunk), leaf(*count)).into_iter().for_each(|run| digest.add(run));
                }
                Piece::Data { chunk, leaves } => {
                    for (at, cv) in (leaf(*chunk)..).zip(leaves) {
                        if *cv == [0; 32] {
                            granules.zeros(at, 1).into_iter().for_each(|run| digest.add(run));
                        } else {
                            granules.data(at, *cv).into_iter().for_each(|run| digest.add(run));
                        }
                    }
                }
            }
        }
        digest.finish().unwrap().b3.unwrap()
    }

    #[test]
    fn the_hashes_are_those_of_blake3_whatever_the_size_and_the_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for size in [0, 1, 4095, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 9 * MIB + 513] {
            let data = [0..1, 70_000..140_000, 2 * MIB - 5..3 * MIB + 9, 9 * MIB..9 * MIB + 513];
            let data: Vec<_> = data.into_iter().filter(|r| r.end <= size).collect();
            file(&path, size, &data);
            let want = blake3(&path);
            let image = Image::open_source(&path, true).unwrap();
            image.sync_before_map().unwrap();
            for chunk in ["64K", "1M", "4M"] {
                for holes in [Holes::Trusted, Holes::Read] {
                    let scope = scope(&image, chunk, holes);
                    let found = run(&image, &scope).unwrap();
                    well_formed(&found, scope.chunks.clone());
                    assert_eq!(b3(&found, size, scope.chunk), want, "{size} in {chunk}, {holes:?}");
                }
            }
        }
    }

    /// By hashing the whole file in one go.
    fn blake3(path: &Path) -> [u8; 32] {
        let bytes = std::fs::read(path).unwrap();
        let size = bytes.len() as u64;
        let mut digest = ImageDigest::new(size, u64::MAX);
        for (i, granule) in (0u64..).zip(bytes.chunks(MIB as usize)) {
            digest.add(Run { start: i, content: Content::Data(leaf_hash(i * MIB, granule, size)) });
        }
        digest.finish().unwrap().b3.unwrap()
    }

    #[test]
    fn written_zeros_and_holes_are_one_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let written = file(&path, 40 * MIB, &[5 * MIB..5 * MIB + 1]);
        written.write_all_at(&vec![0; 3 << 20], 9 * MIB).unwrap();
        let image = Image::open_source(&path, true).unwrap();
        image.sync_before_map().unwrap();
        for holes in [Holes::Trusted, Holes::Read] {
            let found = run(&image, &scope(&image, "1M", holes)).unwrap();
            let [
                Piece::Zero { chunk: 0, count: 5 },
                Piece::Data { chunk: 5, .. },
                Piece::Zero { chunk: 6, count: 34 },
            ] = found[..]
            else {
                panic!("{found:?}")
            };
        }
    }

    #[test]
    fn leaves_without_data_in_a_large_chunk_are_zero() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file(&path, 7 * MIB + 5, &[2 * MIB..2 * MIB + 1]);
        let image = Image::open_source(&path, true).unwrap();
        let found = run(&image, &scope(&image, "4M", Holes::Read)).unwrap();
        let Piece::Data { chunk: 0, leaves } = &found[0] else { panic!("{found:?}") };
        assert_eq!(leaves.iter().map(|l| *l != [0; 32]).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(found[1], Piece::Zero { chunk: 1, count: 1 });
    }

    #[test]
    fn a_part_of_the_image_hashes_as_in_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        file(&path, 20 * MIB + 1, &[0..20 * MIB + 1]);
        let image = Image::open_source(&path, true).unwrap();
        let whole = scope(&image, "1M", Holes::Trusted);
        let all = run(&image, &whole).unwrap();
        let part = Scope { chunks: 7..12, ..whole.clone() };
        assert_eq!(run(&image, &part).unwrap(), all[7..12]);
        let past_the_end = Scope { chunks: 20..u64::MAX, ..whole.clone() };
        assert_eq!(run(&image, &Scope { chunks: 20..21, ..past_the_end }).unwrap(), all[20..]);
        let smaller = Scope { size: 5 * MIB + 7, chunks: 0..6, ..whole };
        assert_eq!(run(&image, &smaller).unwrap()[..5], all[..5]);
    }

    #[test]
    fn a_file_that_was_cut_off_is_no_file_with_a_hole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let written = file(&path, 9 * MIB, &[0..2 * MIB]);
        let image = Image::open_source(&path, true).unwrap();
        written.set_len(4 * MIB + 5).unwrap();
        for holes in [Holes::Trusted, Holes::Read] {
            let failure = run(&image, &scope(&image, "1M", holes)).unwrap_err();
            assert_eq!(failure.exit, 1);
            let place = format!("{} ended at byte 4194309 of 9437184", path.display());
            assert!(failure.reason.starts_with(&place), "{failure}");
        }
    }

    /// Whoever does not ask is not read for: no more than [`DEPTH`] chunks are hashed ahead.
    #[tokio::test(flavor = "current_thread")]
    async fn it_waits_for_whoever_asks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let written = file(&path, 64 * MIB, &[0..64 * MIB]);
        let image = Image::open_source(&path, true).unwrap();
        let scope = scope(&image, "1M", Holes::Read);
        let (engine, pool) = engine(scope.chunk, DEPTH);
        let mut survey = Survey::new(&image, &engine, &pool, scope);
        survey.next().await.unwrap();
        // Had it gone on, it would not see this.
        while pool.free() < DEPTH {
            tokio::task::yield_now().await;
        }
        written.write_all_at(&vec![0; 40 << 20], 20 * MIB).unwrap();
        let mut zeros = 0;
        while let Some(found) = survey.next().await.unwrap() {
            zeros += if let Piece::Zero { count, .. } = found { count } else { 0 };
        }
        assert_eq!(zeros, 40);
    }
}
