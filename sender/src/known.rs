//! What the destination has since an earlier attempt: asked for in image order, a little ahead of
//! where it is needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use proto::control::{ANSWERS, Failure, ToReceiver};
use proto::geometry::{ChunkSize, GRANULE};
use proto::granules::Run;
use tokio::sync::{mpsc, watch};

use crate::digest::Digester;
use crate::job::Shared;

/// One answer of the receiver.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) image: u32,
    pub(crate) from: u64,
    pub(crate) runs: Vec<Run>,
    pub(crate) next: Option<u64>,
}

/// Where questions go and answers come from.
#[derive(Debug)]
pub(crate) struct Line {
    shared: Arc<Shared>,
    answers: mpsc::UnboundedReceiver<Answer>,
    control: watch::Receiver<bool>,
}

impl Line {
    pub(crate) fn new(shared: Arc<Shared>, answers: mpsc::UnboundedReceiver<Answer>) -> Line {
        let control = shared.control.subscribe();
        Line { shared, answers, control }
    }
}

/// Granules that need not be sent, of one image after the other.
pub(crate) struct Known {
    image: u32,
    chunk: ChunkSize,
    line: Line,
    digester: Digester,
    /// Those that were told and not passed yet.
    runs: VecDeque<Run>,
    /// Granule where the next answer begins; `None`: nothing more is known.
    next: Option<u64>,
    /// Answers that are still to come for the last question.
    due: u32,
}

impl Known {
    pub(crate) fn new(chunk: ChunkSize, line: Line, digester: Digester) -> Known {
        Known { image: 0, chunk, line, digester, runs: VecDeque::new(), next: None, due: 0 }
    }

    /// Goes on with another image. `durable`: the destination has some of it.
    pub(crate) fn begin(&mut self, image: u32, durable: bool) {
        (self.image, self.next, self.due) = (image, durable.then_some(0), 0);
        self.runs.clear();
    }

    /// How `chunks` begins: with so many that are known (`true`), or that are not. Chunks are asked for
    /// in order.
    ///
    /// # Errors
    /// The receiver is gone, or breaks the protocol.
    pub(crate) async fn first(&mut self, chunks: Range<u64>) -> Result<(bool, Range<u64>), Failure> {
        let start = self.granule(chunks.start);
        self.pass(start);
        while self.runs.is_empty() && self.next.is_some_and(|next| next <= start) {
            self.hear().await?;
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
    pub(crate) async fn finish(&mut self) -> Result<(), Failure> {
        while self.next.is_some() {
            self.hear().await?;
        }
        Ok(())
    }

    fn pass(&mut self, granule: u64) {
        while self.runs.front().is_some_and(|run| run.range().end <= granule) {
            self.runs.pop_front();
        }
    }

    async fn hear(&mut self) -> Result<(), Failure> {
        let Some(from) = self.next else { return Ok(()) };
        if self.due == 0 {
            self.ask(from);
        }
        let gone = || Failure::new(1, "the receiver went away");
        loop {
            let answer = tokio::select! {
                answer = self.line.answers.recv() => answer.ok_or_else(gone)?,
                _ = self.line.control.changed() => {
                    // Question or answer may be lost with the connection; an answer that comes twice is
                    // one of an earlier question.
                    if *self.line.control.borrow_and_update() {
                        self.ask(from);
                    }
                    continue;
                }
            };
            if (answer.image, answer.from) != (self.image, from) {
                continue; // of an earlier question
            }
            let order =
                answer.runs.iter().try_fold(from, |at, run| (run.start >= at).then(|| run.range().end));
            if order.is_none() || answer.next.is_some_and(|next| next <= from) {
                return Err(broken());
            }
            self.due -= 1;
            self.next = answer.next;
            self.digester.known(self.image, answer.runs.clone());
            self.runs.extend(answer.runs);
            return Ok(());
        }
    }

    fn ask(&mut self, from: u64) {
        self.line.shared.say(ToReceiver::Ask { image: self.image, from });
        self.due = ANSWERS;
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

fn broken() -> Failure {
    Failure::new(1, "the receiver broke the protocol: what it has since an earlier attempt makes no sense")
}
