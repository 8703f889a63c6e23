//! What an older copy at the destination holds: heard in image order, as it is found out there.

use std::collections::VecDeque;
use std::ops::Range;

use proto::control::{Failure, Piece};
use proto::digest::Cv;

use crate::known::{Answer, Line, broken};

/// What the destination has of one image after the other.
pub(crate) struct Older {
    image: u32,
    pieces: VecDeque<Piece>,
    /// Chunk where the next answer begins; `None`: nothing more is there.
    next: Option<u64>,
}

fn range(piece: &Piece) -> Range<u64> {
    match piece {
        Piece::Data { chunk, .. } => *chunk..chunk.saturating_add(1),
        Piece::Zero { chunk, count } => *chunk..chunk.saturating_add(*count),
    }
}

impl Older {
    /// Of an image of which there is an older copy, or nothing.
    pub(crate) fn begin(image: u32, older: bool) -> Older {
        Older { image, pieces: VecDeque::new(), next: older.then_some(0) }
    }

    /// What the destination has in a chunk: the hashes of its leaves, none where it reads as zero;
    /// `None`: nothing. Chunks are asked for in order.
    ///
    /// # Errors
    /// The receiver is gone, or breaks the protocol.
    pub(crate) async fn chunk(&mut self, chunk: u64, line: &mut Line) -> Result<Option<Vec<Cv>>, Failure> {
        self.reach(chunk, line).await?;
        Ok(self.pieces.front().filter(|piece| range(piece).contains(&chunk)).map(|piece| match piece {
            Piece::Data { leaves, .. } => leaves.clone(),
            Piece::Zero { .. } => Vec::new(),
        }))
    }

    /// How `chunks` begins: with so many that read as zero at the destination (`true`), or do not.
    ///
    /// # Errors
    /// As [`Older::chunk`].
    pub(crate) async fn first(
        &mut self,
        chunks: Range<u64>,
        line: &mut Line,
    ) -> Result<(bool, Range<u64>), Failure> {
        self.reach(chunks.start, line).await?;
        let Some(piece) = self.pieces.front() else {
            // Nothing is there, up to where more may be.
            let end = self.next.map_or(chunks.end, |next| next.clamp(chunks.start + 1, chunks.end));
            return Ok((false, chunks.start..end));
        };
        let there = range(piece);
        if there.start > chunks.start {
            return Ok((false, chunks.start..there.start.min(chunks.end)));
        }
        Ok((matches!(piece, Piece::Zero { .. }), chunks.start..there.end.min(chunks.end)))
    }

    /// Goes on to a chunk.
    async fn reach(&mut self, chunk: u64, line: &mut Line) -> Result<(), Failure> {
        loop {
            while self.pieces.front().is_some_and(|piece| range(piece).end <= chunk) {
                self.pieces.pop_front();
            }
            match self.next {
                Some(from) if self.pieces.is_empty() && from <= chunk => self.hear(from, line).await?,
                _ => return Ok(()),
            }
        }
    }

    async fn hear(&mut self, from: u64, line: &mut Line) -> Result<(), Failure> {
        let Answer::Found { pieces, next, .. } = line.answer(self.image, from).await? else {
            return Err(broken());
        };
        let order = pieces
            .iter()
            .map(range)
            .try_fold(from, |at, piece| (piece.start >= at && piece.end > piece.start).then_some(piece.end));
        if order.is_none() || next.is_some_and(|next| Some(next) < order || next <= from) {
            return Err(broken());
        }
        self.next = next;
        self.pieces.extend(pieces);
        Ok(())
    }
}
