//! What the destination has since an earlier attempt: asked for in image order, a little ahead of
//! where it is needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use proto::control::{ANSWERS, Failure, Piece, ToReceiver};
use proto::geometry::{ChunkSize, GRANULE};
use proto::granules::Run;
use tokio::sync::{mpsc, watch};

use crate::digest::Digester;
use crate::job::Shared;

/// One answer of the receiver.
#[derive(Debug)]
pub(crate) enum Answer {
    /// What is durable since an earlier attempt.
    Known { image: u32, from: u64, runs: Vec<Run>, next: Option<u64> },
    /// What an older copy holds.
    Found { image: u32, from: u64, pieces: Vec<Piece>, next: Option<u64> },
}

impl Answer {
    /// Image, and where it begins.
    fn place(&self) -> (u32, u64) {
        match self {
            Answer::Known { image, from, .. } | Answer::Found { image, from, .. } => (*image, *from),
        }
    }
}

/// Where questions go and answers come from.
#[derive(Debug)]
pub(crate) struct Line {
    shared: Arc<Shared>,
    answers: mpsc::UnboundedReceiver<Answer>,
    control: watch::Receiver<bool>,
    /// The image that was asked about last.
    image: Option<u32>,
    /// Answers that are still to come.
    due: u32,
}

impl Line {
    pub(crate) fn new(shared: Arc<Shared>, answers: mpsc::UnboundedReceiver<Answer>) -> Line {
        let control = shared.control.subscribe();
        Line { shared, answers, control, image: None, due: 0 }
    }

    /// The answer that begins at `from`; asks for it, and those behind it, where that is not done yet.
    ///
    /// # Errors
    /// The receiver is gone.
    pub(crate) async fn answer(&mut self, image: u32, from: u64) -> Result<Answer, Failure> {
        if self.due == 0 || self.image != Some(image) {
            self.ask(image, from);
        }
        let gone = || Failure::new(1, "the receiver went away");
        loop {
            tokio::select! {
                answer = self.answers.recv() => {
                    let answer = answer.ok_or_else(gone)?;
                    // Others are of an earlier question, or come twice.
                    if answer.place() == (image, from) {
                        self.due = self.due.saturating_sub(1);
                        return Ok(answer);
                    }
                }
                _ = self.control.changed() => {
                    // Question or answer may be lost with the connection.
                    if *self.control.borrow_and_update() {
                        self.ask(image, from);
                    }
                }
            }
        }
    }

    fn ask(&mut self, image: u32, from: u64) {
        self.shared.say(ToReceiver::Ask { image, from });
        (self.image, self.due) = (Some(image), ANSWERS);
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
}

impl Known {
    /// Of an image of which the destination has something `durable`, or nothing.
    pub(crate) fn begin(image: u32, durable: bool, chunk: ChunkSize, digester: Digester) -> Known {
        Known { image, chunk, digester, runs: VecDeque::new(), next: durable.then_some(0) }
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
        let Answer::Known { runs, next, .. } = line.answer(self.image, from).await? else {
            return Err(broken());
        };
        let order = runs.iter().try_fold(from, |at, run| (run.start >= at).then(|| run.range().end));
        if order.is_none() || next.is_some_and(|next| next <= from) {
            return Err(broken());
        }
        self.next = next;
        self.digester.known(self.image, runs.clone());
        self.runs.extend(runs);
        Ok(())
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
