//! Durability: flush what was written, then say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blockio::SyncKind;
use proto::control::Failure;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

use crate::job::Receiving;
use crate::part::blocking;

/// Data that may be written and not yet durable, bytes, unless the user said otherwise.
const WINDOW: u64 = 256 << 20;
/// A flush holds up the writes beside it, on some disks all of them. So, unless the user chose the
/// window, the next one waits for so many times as long as the last one took: 2 % of the time.
const SPARING: u32 = 49;
/// But never longer than this.
const SPARING_MAX: Duration = Duration::from_secs(30);

/// When to flush.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Bytes written since the last flush began.
    dirty: AtomicU64,
    /// Bytes that the flush under way covers.
    flushing: AtomicU64,
    full: Notify,
    flushed: Notify,
    /// Half of the sync window, bytes: the other half fills while a flush runs.
    threshold: u64,
    /// One flush at a time.
    turn: Mutex<()>,
    /// Flushes may be put off when they are slow.
    sparing: bool,
    /// The user chose it.
    chosen: bool,
}

impl Window {
    /// `chosen`: as the user wants it. Without `direct` writes pile up in the page cache, and a
    /// flush put off would only be longer.
    pub(crate) fn new(chosen: Option<u64>, direct: bool) -> Window {
        let threshold = (chosen.unwrap_or(WINDOW) / 2).max(1);
        let (sparing, chosen) = (chosen.is_none() && direct, chosen.is_some());
        Window { threshold, sparing, chosen, ..Window::default() }
    }

    /// Ready when there is room in the window, if the user chose one: no more than that may be lost.
    pub(crate) async fn room(&self) {
        loop {
            let flushed = self.flushed.notified();
            let open = self.dirty.load(Relaxed) + self.flushing.load(Relaxed);
            if !self.chosen || open < 2 * self.threshold {
                return;
            }
            flushed.await;
        }
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        if self.dirty.fetch_add(bytes, Relaxed) + bytes >= self.threshold {
            self.full.notify_one();
        }
    }
}

/// Flushes whenever half a window is dirty, until the job ends.
pub(crate) async fn run(job: Arc<Receiving>) -> Failure {
    let window = &job.window;
    loop {
        window.full.notified().await;
        if window.dirty.load(Relaxed) < window.threshold {
            continue;
        }
        let started = Instant::now();
        if let Err(failure) = flush(&job, None).await {
            return failure;
        }
        if window.sparing {
            sleep((started.elapsed() * SPARING).min(SPARING_MAX)).await;
        }
    }
}

/// Makes everything durable that was written before the call, and notes it: first the data, then
/// the ledger, then the sender is told. `finished`: an image that will have its name in a moment, and
/// needs no ledger of its own for that.
///
/// # Errors
/// What fdatasync says; the job is over then, since the kernel tells a lost write only once.
pub(crate) async fn flush(job: &Arc<Receiving>, finished: Option<u32>) -> Result<(), Failure> {
    let _turn = job.window.turn.lock().await;
    job.window.flushing.store(job.window.dirty.swap(0, Relaxed), Relaxed);
    let mut flush = job.session().begin_flush();
    let started = Instant::now();
    for image in &flush.images {
        let part = &job.parts[*image as usize];
        job.engine.sync(&part.image, SyncKind::Data).await.map_err(|e| Failure::new(1, e.to_string()))?;
    }
    for (image, runs) in std::mem::take(&mut flush.granules) {
        let part = job.parts[image as usize].clone();
        let make = finished != Some(image);
        blocking(move || part.logbook.iter().try_for_each(|l| l.note(runs.clone(), make))).await?;
    }
    job.meter.flush.since(started);
    job.session().end_flush(&flush);
    job.window.flushing.store(0, Relaxed);
    job.window.flushed.notify_waiters();
    job.acks.notify_one();
    Ok(())
}
