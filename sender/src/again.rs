//! Units that a lane did not bring over: their data are read again, since a buffer is free once sent.

use std::time::Instant;

use proto::control::Failure;
use proto::extents::BlockMap;
use proto::geometry::BLOCK;
use proto::leaves::chunk_leaves;
use proto::session::Unit;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::read::{DEPTH, Reader, Ready, settled};

impl Reader {
    /// Puts every unit that comes back into the ready queue once more, until there are no more.
    ///
    /// # Errors
    /// What the source says, or that it changed.
    pub(crate) async fn again(self, mut returned: mpsc::UnboundedReceiver<Unit>) -> Result<(), Failure> {
        let mut reads: JoinSet<Result<(), Failure>> = JoinSet::new();
        loop {
            tokio::select! {
                Some(done) = reads.join_next() => settled(done)?,
                unit = returned.recv(), if reads.len() < DEPTH => {
                    let Some(unit) = unit else { break };
                    let this = self.clone();
                    reads.spawn(async move { this.one_again(unit).await });
                }
            }
        }
        while let Some(done) = reads.join_next().await {
            settled(done)?;
        }
        Ok(())
    }

    async fn one_again(&self, unit: Unit) -> Result<(), Failure> {
        // What was to be kept is told as it is: what the destination has is not known here any more.
        let kept = unit.kept && unit.count == 1;
        if unit.bytes == 0 && !kept {
            let _ = self.ready.send(Ready::Zero { unit: Unit { kept: false, ..unit } }).await;
            return Ok(());
        }
        let source = &self.sources[unit.image as usize];
        let size = source.entry().size;
        let len = self.chunk.len_of(unit.chunk, size);
        let offset = unit.chunk * u64::from(self.chunk.bytes());
        let buffer = self.pool.take().await;
        let started = Instant::now();
        let (buffer, read) = self.engine.read(&source.image, buffer, offset, len as usize).await;
        self.shared.meter.read.since(started);
        let got = read.map_err(|e| Failure::new(1, e.to_string()))?;
        self.shared.meter.read_bytes.add(got as u64);
        // Holes read as zeros, so the map comes out as it did the first time.
        let mut whole = BlockMap::EMPTY;
        whole.set(0..len.div_ceil(BLOCK) as usize);
        let map = crate::scan::data_map(&buffer[..len as usize], &whole);
        let bytes = map.data_bytes(len);
        if got < len as usize || !kept && bytes != unit.bytes {
            source.check_unchanged()?;
            let path = source.image.path().display();
            let reason = format!(
                "{path} reads otherwise at byte {offset} than it did before: something writes to it, or its disk fails"
            );
            return Err(Failure::new(1, reason));
        }
        let unit = Unit { bytes, kept: false, ..unit };
        if bytes == 0 {
            let _ = self.ready.send(Ready::Zero { unit }).await;
            return Ok(());
        }
        let leaves = chunk_leaves(size, self.chunk, unit.chunk, &map, &buffer[..len as usize]);
        let _ = self.ready.send(Ready::Data { unit, ahead: 0, map, leaves, buffer }).await;
        Ok(())
    }
}
