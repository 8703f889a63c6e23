//! What the destination had before: found out chunk by chunk while the sender reads its own image,
//! told when it asks, and kept where both are the same.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockio::{Engine, Image, Pool};
use proto::control::{ANSWERS, Failure, KNOWN_MAX, Piece, ToSender};
use proto::digest::Cv;
use proto::extents::{BlockMap, RunSet, is_zero};
use proto::geometry::{BLOCK, ChunkSize};
use tokio::sync::mpsc;

use crate::part::blocking;
use crate::survey::{Holes, Scope, Survey};

/// Pieces that are found out ahead of what is asked for: some GiB, about 100 bytes each.
const AHEAD: usize = 4096;

/// What one image's destination had before.
#[derive(Debug)]
pub(crate) struct Base {
    image: u32,
    /// It lies beside the new copy, and what is kept has to be copied.
    pub(crate) beside: Option<Image>,
    undecided: Mutex<Undecided>,
    survey: tokio::sync::Mutex<Told>,
}

/// What was told the sender, which has not said yet what becomes of it.
#[derive(Debug, Default)]
struct Undecided {
    data: BTreeMap<u64, Vec<Cv>>,
    zeros: RunSet,
}

#[derive(Debug)]
struct Told {
    /// Not begun: what to look at.
    scope: Option<(Image, Engine, Pool, Scope)>,
    pieces: Option<mpsc::Receiver<Result<Piece, Failure>>>,
    /// Where the next answer begins; `None`: everything was told.
    next: Option<u64>,
    /// The last answers, which may have been lost.
    last: VecDeque<(u64, ToSender)>,
}

impl Base {
    /// `old`: what to look at, all of it up to `size` bytes; `beside`: it is not what is written.
    pub(crate) fn new(
        image: u32,
        old: &Image,
        size: u64,
        beside: bool,
        chunk: ChunkSize,
        engine: &Engine,
        pool: &Pool,
    ) -> Base {
        let scope = Scope { size, chunk, chunks: 0..chunk.count(size), holes: Holes::Trusted };
        Base {
            image,
            beside: beside.then(|| old.clone()),
            undecided: Mutex::default(),
            survey: tokio::sync::Mutex::new(Told {
                scope: Some((old.clone(), engine.clone(), pool.clone(), scope)),
                pieces: None,
                next: Some(0),
                last: VecDeque::new(),
            }),
        }
    }

    fn undecided(&self) -> MutexGuard<'_, Undecided> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question: what is there from chunk `from` on.
    ///
    /// # Errors
    /// What the disk says; a sender that asks for what was not told yet.
    pub(crate) async fn tell(&self, from: u64, say: &mpsc::UnboundedSender<ToSender>) -> Result<(), Failure> {
        let mut told = self.survey.lock().await;
        // Asked again: answers of before were lost on the way.
        told.last.retain(|(at, _)| *at >= from);
        let first = told.last.front().map(|(at, _)| *at).or(told.next);
        if first != Some(from) {
            return Ok(());
        }
        for (_, answer) in &told.last {
            let _ = say.send(answer.clone());
        }
        for _ in told.last.len()..ANSWERS as usize {
            let Some(from) = told.next else { break };
            let (pieces, next) = told.some(from).await?;
            self.undecided().add(&pieces);
            let answer = ToSender::Found { image: self.image, from, pieces, next };
            told.next = next;
            told.last.push_back((from, answer.clone()));
            let _ = say.send(answer);
        }
        Ok(())
    }

    /// The sender keeps a chunk of data, which it says has these leaves; whether it does.
    pub(crate) fn keeps(&self, chunk: u64, leaves: &[Cv]) -> bool {
        self.undecided().data.remove(&chunk).is_some_and(|found| found == leaves)
    }

    /// The sender keeps chunks that read as zero; whether they do.
    pub(crate) fn keeps_zeros(&self, chunk: u64, count: u64) -> bool {
        let range = chunk..chunk.saturating_add(count);
        self.undecided().zeros.within(range.clone()).eq([range])
    }

    /// Something else comes in place of a chunk.
    pub(crate) fn replaced(&self, chunk: u64) {
        self.undecided().data.remove(&chunk);
    }
}

impl Undecided {
    fn add(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Data { chunk, leaves } => drop(self.data.insert(*chunk, leaves.clone())),
                Piece::Zero { chunk, count } => {
                    self.zeros.insert_new(*chunk..chunk + count);
                }
            }
        }
    }
}

impl Told {
    /// The next pieces, as many as are there, and where they end.
    async fn some(&mut self, from: u64) -> Result<(Vec<Piece>, Option<u64>), Failure> {
        if let Some((image, engine, pool, scope)) = self.scope.take() {
            let (found, pieces) = mpsc::channel(AHEAD);
            // Else what is not on the disk yet is taken for a hole.
            let flushed = image.clone();
            blocking(move || flushed.sync_before_map().map_err(|e| Failure::new(1, e.to_string()))).await?;
            tokio::spawn(look(Survey::new(&image, &engine, &pool, scope), found));
            self.pieces = Some(pieces);
        }
        let Some(found) = &mut self.pieces else { return Ok((Vec::new(), None)) };
        let (mut pieces, mut leaves, mut next) = (Vec::new(), 0, from);
        loop {
            let piece = if pieces.is_empty() { found.recv().await } else { found.try_recv().ok() };
            let Some(piece) = piece else {
                let more = !(found.is_closed() && found.is_empty());
                return Ok((pieces, more.then_some(next)));
            };
            let piece = piece?;
            (leaves, next) = match &piece {
                Piece::Data { chunk, leaves: cvs } => (leaves + cvs.len(), chunk + 1),
                Piece::Zero { chunk, count } => (leaves + 1, chunk + count),
            };
            pieces.push(piece);
            // One more chunk has at most four.
            if leaves + 4 > KNOWN_MAX {
                return Ok((pieces, Some(next)));
            }
        }
    }
}

async fn look(mut survey: Survey, found: mpsc::Sender<Result<Piece, Failure>>) {
    loop {
        let piece = match survey.next().await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => return,
            Err(failure) => Err(failure),
        };
        let ended = piece.is_err();
        if found.send(piece).await.is_err() || ended {
            return;
        }
    }
}

/// The blocks of a chunk that are not zero.
pub(crate) fn data_map(bytes: &[u8]) -> BlockMap {
    let mut map = BlockMap::EMPTY;
    for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
        if !is_zero(block) {
            map.set(i..i + 1);
        }
    }
    map
}
