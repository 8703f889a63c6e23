//! What the destination has since an earlier attempt: asked for in image order, a little ahead of
//! where it is needed.

use std::collections::VecDeque;
use std::ops::Range;

use proto::control::{ANSWERS, Failure, Piece, ToReceiver};
use proto::geometry::{ChunkSize, GRANULE};
use proto::granules::Run;
use tokio::sync::mpsc;

use crate::digest::Digester;

/// One answer of the receiver.
#[derive(Debug)]
pub(crate) enum Answer {
    /// What is durable since an earlier attempt.
    Known { image: u32, from: u64, runs: Vec<Run>, next: Option<u64> },
    /// What an older copy holds.
    Found { image: u32, from: u64, pieces: Vec<Piece>, next: Option<u64> },
}

/// Where questions go and answers come from.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) ask: mpsc::UnboundedSender<ToReceiver>,
    pub(crate) answers: mpsc::UnboundedReceiver<Answer>,
}

impl Line {
    /// The next answer.
    ///
    /// # Errors
    /// The receiver is gone.
    pub(crate) async fn hear(&mut self) -> Result<Answer, Failure> {
        self.answers.recv().await.ok_or_else(|| Failure::new(1, "the receiver went away"))
    }
}

/// Granules that need not be sent, of one image after the other.
pub(crate) struct Known {
    image: u32,
    chunk: ChunkSize,
    digester: Digester,
    /// Those that were told and not passed yet.
    runs: VecDeque<Run>,
    /// Granule where the next answer begins; `None`: nothing more is known.
    next: Option<u64>,
    /// Answers that are still to come for the last question.
    due: u32,
}

impl Known {
    /// Of an image of which the destination has something `durable`, or nothing.
    pub(crate) fn begin(image: u32, durable: bool, chunk: ChunkSize, digester: Digester) -> Known {
        Known { image, chunk, digester, runs: VecDeque::new(), next: durable.then_some(0), due: 0 }
    }

    /// How `chunks` begins: with so many that are known (`true`), or that are not. Chunks are asked for
    /// in order.
    ///
    /// # Errors
    /// The receiver is gone, or breaks the protocol.
    pub(crate) async fn first(
        &mut self,
        chunks: Range<u64>,
        line: &mut Line,
    ) -> Result<(bool, Range<u64>), Failure> {
        let start = self.granule(chunks.start);
        self.pass(start);
        while self.runs.is_empty() && self.next.is_some_and(|next| next <= start) {
            self.hear(line).await?;
            self.pass(start);
        }
        let until = |granule| self.chunk_of(granule).clamp(chunks.start, chunks.end);
        let Some(first) = self.runs.front().filter(|run| run.start <= start) else {
            let unknown = self.runs.front().map(|run| run.start).or(self.next);
            return Ok((false, chunks.start..unknown.map_or(chunks.end, until)));
        };
        let mut to = first.range().end;
        for run in self.runs.iter().skip(1).take_while(|run| run.start < self.granule(chunks.end)) {
            if run.start > to {
                break;
            }
            to = run.range().end;
        }
        Ok((true, chunks.start..until(to)))
    }

    /// Hears the rest, which the digest needs.
    ///
    /// # Errors
    /// As [`Known::first`].
    pub(crate) async fn finish(&mut self, line: &mut Line) -> Result<(), Failure> {
        while self.next.is_some() {
            self.hear(line).await?;
        }
        Ok(())
    }

    fn pass(&mut self, granule: u64) {
        while self.runs.front().is_some_and(|run| run.range().end <= granule) {
            self.runs.pop_front();
        }
    }

    async fn hear(&mut self, line: &mut Line) -> Result<(), Failure> {
        let Some(from) = self.next else { return Ok(()) };
        if self.due == 0 {
            let _ = line.ask.send(ToReceiver::Ask { image: self.image, from });
            self.due = ANSWERS;
        }
        loop {
            let (runs, next) = match line.hear().await? {
                Answer::Known { image, from: at, runs, next } if (image, at) == (self.image, from) => {
                    (runs, next)
                }
                _ => continue, // of an earlier question
            };
            let order = runs.iter().try_fold(from, |at, run| (run.start >= at).then(|| run.range().end));
            if order.is_none() || next.is_some_and(|next| next <= from) {
                return Err(broken());
            }
            self.due -= 1;
            self.next = next;
            self.digester.known(self.image, runs.clone());
            self.runs.extend(runs);
            return Ok(());
        }
    }

    /// The granule that a chunk begins with.
    fn granule(&self, chunk: u64) -> u64 {
        chunk.saturating_mul(u64::from(self.chunk.bytes())) / u64::from(GRANULE)
    }

    /// The chunk that a granule is the first one of; the next one, for a granule within a chunk.
    fn chunk_of(&self, granule: u64) -> u64 {
        granule.saturating_mul(u64::from(GRANULE)).div_ceil(u64::from(self.chunk.bytes()))
    }
}

pub(crate) fn broken() -> Failure {
    Failure::new(1, "the receiver broke the protocol: what it says that it has makes no sense")
}
