//! Whole-image digests on a thread of their own: hashing the zeros of a large hole for `b3` takes
//! seconds, and nothing else may wait for it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use proto::digest::{B3_ZERO_LIMIT, Cv, Digests, ImageDigest};
use proto::geometry::ChunkSize;
use proto::granules::{Granules, Run};
use tokio::sync::oneshot;

enum Event {
    Expect { image: u32, granules: u64 },
    Leaves { image: u32, first: u64, leaves: Vec<Option<Cv>> },
    Zeros { image: u32, first: u64, count: u64 },
    Known { image: u32, runs: Vec<Run> },
    Finish { image: u32, answer: oneshot::Sender<Option<Digests>> },
}

/// Events handed over at once: to wake the thread takes longer than to merge a chunk's leaves.
const BATCH: usize = 64;
/// Leaves of zeros that are worth waking the thread for.
const MANY_ZEROS: u64 = 64;

/// Handle to the thread; it ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Digester {
    thread: Sender<Vec<Event>>,
    batch: Arc<Mutex<Vec<Event>>>,
}

impl Digester {
    /// A thread for images of these sizes. `b3_always` hashes any amount of zeros.
    pub(crate) fn start(sizes: &[u64], chunk: ChunkSize, b3_always: bool) -> std::io::Result<Digester> {
        let limit = if b3_always { u64::MAX } else { B3_ZERO_LIMIT };
        let mut images: Vec<_> = sizes.iter().map(|s| Some(Hashes::new(*s, chunk, limit))).collect();
        let (tx, rx) = channel();
        thread::Builder::new().name("digest".into()).spawn(move || {
            for event in rx.into_iter().flatten() {
                match event {
                    Event::Expect { image, granules } => {
                        if let Some(hashes) = open(&mut images, image) {
                            hashes.digest.expect_zeros(granules);
                        }
                    }
                    Event::Leaves { image, first, leaves } => {
                        let Some(hashes) = open(&mut images, image) else { continue };
                        for (at, leaf) in (first..).zip(leaves) {
                            match leaf {
                                Some(cv) => hashes.data(at, cv),
                                None => hashes.zeros(at, 1),
                            }
                        }
                    }
                    Event::Zeros { image, first, count } => {
                        if let Some(hashes) = open(&mut images, image) {
                            hashes.zeros(first, count);
                        }
                    }
                    Event::Known { image, runs } => {
                        let Some(hashes) = open(&mut images, image) else { continue };
                        runs.into_iter().for_each(|run| hashes.digest.add(run));
                    }
                    Event::Finish { image, answer } => {
                        let digest = images.get_mut(image as usize).and_then(Option::take);
                        let _ = answer.send(digest.and_then(|hashes| hashes.digest.finish()));
                    }
                }
            }
        })?;
        Ok(Digester { thread: tx, batch: Arc::default() })
    }

    /// At least so many granules of zeros will follow.
    pub(crate) fn expect_zeros(&self, image: u32, granules: u64) {
        self.tell(Event::Expect { image, granules }, false);
    }

    /// Leaves of one chunk; `None` where a leaf has no data.
    pub(crate) fn leaves(&self, image: u32, first: u64, leaves: Vec<Option<Cv>>) {
        self.tell(Event::Leaves { image, first, leaves }, false);
    }

    pub(crate) fn zeros(&self, image: u32, first: u64, count: u64) {
        self.tell(Event::Zeros { image, first, count }, count >= MANY_ZEROS);
    }

    /// Granules that are not read, since their hashes are known.
    pub(crate) fn known(&self, image: u32, runs: Vec<Run>) {
        self.tell(Event::Known { image, runs }, true);
    }

    /// The digests, once all leaves were told; `None` when some are missing.
    pub(crate) async fn finish(&self, image: u32) -> Option<Digests> {
        let (answer, digests) = oneshot::channel();
        self.tell(Event::Finish { image, answer }, true);
        digests.await.ok().flatten()
    }

    fn tell(&self, event: Event, now: bool) {
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        batch.push(event);
        if now || batch.len() >= BATCH {
            // Under the lock, so that batches keep their order. A thread that is gone answers
            // `finish` with None, which ends the job.
            let _ = self.thread.send(std::mem::take(&mut *batch));
        }
    }
}

/// Of one image.
struct Hashes {
    granules: Granules,
    digest: ImageDigest,
}

impl Hashes {
    fn new(size: u64, chunk: ChunkSize, b3_zero_limit: u64) -> Hashes {
        Hashes { granules: Granules::new(size, chunk), digest: ImageDigest::new(size, b3_zero_limit) }
    }

    fn data(&mut self, leaf: u64, cv: Cv) {
        self.granules.data(leaf, cv).into_iter().for_each(|run| self.digest.add(run));
    }

    fn zeros(&mut self, first: u64, count: u64) {
        self.granules.zeros(first, count).into_iter().for_each(|run| self.digest.add(run));
    }
}

fn open(images: &mut [Option<Hashes>], image: u32) -> Option<&mut Hashes> {
    images.get_mut(image as usize)?.as_mut()
}
