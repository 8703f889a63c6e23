//! Whole-image digests on a thread of their own: hashing the zeros of a large hole for `b3` takes
//! seconds, and nothing else may wait for it.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use proto::digest::{B3_ZERO_LIMIT, Cv, Digests, ImageDigest};
use proto::geometry::ChunkSize;
use tokio::sync::oneshot;

enum Event {
    Expect { image: u32, granules: u64 },
    Leaves { image: u32, first: u64, leaves: Vec<Option<Cv>> },
    Zeros { image: u32, first: u64, count: u64 },
    Finish { image: u32, answer: oneshot::Sender<Option<Digests>> },
}

/// Handle to the thread; it ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Digester(Sender<Event>);

impl Digester {
    /// A thread for images of these sizes. `b3_always` hashes any amount of zeros.
    pub(crate) fn start(sizes: &[u64], chunk: ChunkSize, b3_always: bool) -> std::io::Result<Digester> {
        let limit = if b3_always { u64::MAX } else { B3_ZERO_LIMIT };
        let mut images: Vec<_> = sizes.iter().map(|s| Some(ImageDigest::new(*s, chunk, limit))).collect();
        let (tx, rx) = channel();
        thread::Builder::new().name("digest".into()).spawn(move || {
            for event in rx {
                match event {
                    Event::Expect { image, granules } => {
                        if let Some(digest) = open(&mut images, image) {
                            digest.expect_zeros(granules);
                        }
                    }
                    Event::Leaves { image, first, leaves } => {
                        let Some(digest) = open(&mut images, image) else { continue };
                        for (at, leaf) in (first..).zip(leaves) {
                            match leaf {
                                Some(cv) => digest.data(at, cv),
                                None => digest.zeros(at, 1),
                            }
                        }
                    }
                    Event::Zeros { image, first, count } => {
                        if let Some(digest) = open(&mut images, image) {
                            digest.zeros(first, count);
                        }
                    }
                    Event::Finish { image, answer } => {
                        let digest = images.get_mut(image as usize).and_then(Option::take);
                        let _ = answer.send(digest.and_then(ImageDigest::finish));
                    }
                }
            }
        })?;
        Ok(Digester(tx))
    }

    /// At least so many granules of zeros will follow.
    pub(crate) fn expect_zeros(&self, image: u32, granules: u64) {
        let _ = self.0.send(Event::Expect { image, granules });
    }

    /// Leaves of one chunk; `None` where a leaf has no data.
    pub(crate) fn leaves(&self, image: u32, first: u64, leaves: Vec<Option<Cv>>) {
        // A thread that is gone answers `finish` with None, which ends the job.
        let _ = self.0.send(Event::Leaves { image, first, leaves });
    }

    pub(crate) fn zeros(&self, image: u32, first: u64, count: u64) {
        let _ = self.0.send(Event::Zeros { image, first, count });
    }

    /// The digests, once all leaves were told; `None` when some are missing.
    pub(crate) async fn finish(&self, image: u32) -> Option<Digests> {
        let (answer, digests) = oneshot::channel();
        let _ = self.0.send(Event::Finish { image, answer });
        digests.await.ok().flatten()
    }
}

fn open(images: &mut [Option<ImageDigest>], image: u32) -> Option<&mut ImageDigest> {
    images.get_mut(image as usize)?.as_mut()
}
