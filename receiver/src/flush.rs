//! Durability: flush what was written, then say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use blockio::SyncKind;
use proto::control::Failure;
use tokio::sync::{Mutex, Notify};

use crate::job::Receiving;

/// When to flush.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Bytes written since the last flush began.
    dirty: AtomicU64,
    full: Notify,
    /// Half of the sync window, bytes: the other half fills while a flush runs.
    threshold: u64,
    /// One flush at a time.
    turn: Mutex<()>,
}

impl Window {
    pub(crate) fn new(sync_window: u64) -> Window {
        Window { threshold: (sync_window / 2).max(1), ..Window::default() }
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        if self.dirty.fetch_add(bytes, Relaxed) + bytes >= self.threshold {
            self.full.notify_one();
        }
    }
}

/// Flushes whenever half a window is dirty, until the job ends.
pub(crate) async fn run(job: Arc<Receiving>) -> Failure {
    loop {
        job.window.full.notified().await;
        if job.window.dirty.load(Relaxed) >= job.window.threshold
            && let Err(failure) = flush(&job).await
        {
            return failure;
        }
    }
}

/// Makes everything durable that was written before the call.
///
/// # Errors
/// What fdatasync says; the job is over then, since the kernel tells a lost write only once.
pub(crate) async fn flush(job: &Receiving) -> Result<(), Failure> {
    let _turn = job.window.turn.lock().await;
    job.window.dirty.store(0, Relaxed);
    let flush = job.session().begin_flush();
    let started = Instant::now();
    for image in &flush.images {
        let part = &job.parts[*image as usize];
        job.engine.sync(&part.image, SyncKind::Data).await.map_err(|e| Failure::new(1, e.to_string()))?;
    }
    job.meter.flush.since(started);
    job.session().end_flush(&flush);
    job.acks.notify_one();
    Ok(())
}
