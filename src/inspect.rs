//! Looks at one image on this host, for a verification: opens it, and tells what lies in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blockio::{Engine, EngineChoice, Identity, Image, Pool};
use proto::control::{Failure, Piece};
use proto::geometry::ChunkSize;
use proto::verify::{Manner, Told};
use receiver::survey::{DEPTH, Holes, Scope, Survey};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::exit;

/// What is read at once and told of: a granule.
const CHUNK: ChunkSize = ChunkSize::DEFAULT;
/// Reads that the engine holds besides those in flight, so that it starts the next ones by itself.
const WAITING: u32 = 4;
/// How often it is known how far it is, at least.
const PROGRESS: Duration = Duration::from_millis(50);

/// An image that can be looked at.
#[derive(Debug)]
pub struct Inspection {
    image: Image,
    identity: Identity,
    engine: Engine,
    pool: Pool,
    holes: Holes,
    notices: Vec<String>,
}

impl Inspection {
    /// Opens an image to read it, and makes sure that nobody writes it. May wait for the disk.
    ///
    /// # Errors
    /// A sentence that names the image and the reason, exit code 3.
    pub fn open(path: &Path, manner: &Manner) -> Result<Inspection, Failure> {
        let refused = |e: blockio::Error| Failure::new(exit::REFUSED, e.to_string());
        let choice: EngineChoice =
            manner.engine.parse().map_err(|e| Failure::new(exit::REFUSED, format!("{e}")))?;
        let image = Image::open_source(path, manner.direct).map_err(refused)?;
        let mut notices = Vec::new();
        match sender::source::in_use(&image).map_err(refused)? {
            None => {}
            Some(reason) if manner.force => {
                notices.push(format!("{reason}; it is looked at all the same (--force)"))
            }
            Some(reason) => {
                let hint = "stop the VM or unmount it first, or look at it all the same with --force";
                return Err(Failure::new(exit::REFUSED, format!("{reason}: {hint}")));
            }
        }
        // Before the hole map is read, and so that the disk is what is looked at.
        image.sync_before_map().map_err(refused)?;
        let identity = image.identity().map_err(refused)?;
        let pool = Pool::new(DEPTH + WAITING as usize, CHUNK.bytes() as usize).map_err(refused)?;
        let engine = Engine::start(choice, DEPTH as u32, &pool).map_err(refused)?;
        notices.extend(engine.notices());
        notices.extend(image.take_notices());
        let holes = if manner.trust_holes { Holes::Trusted } else { Holes::Read };
        Ok(Inspection { image, identity, engine, pool, holes, notices })
    }

    /// What is known before anything is read.
    pub fn opened(&self) -> Told {
        Told::Open {
            size: self.image.size(),
            device: self.image.sectors().is_some(),
            engine: self.engine.kind().as_str().to_owned(),
            notices: self.notices.clone(),
        }
    }

    /// Tells of the first `size` bytes, to the end or the failure; `done` counts the bytes looked at.
    pub async fn run(self, size: u64, done: Arc<AtomicU64>, tell: mpsc::Sender<Told>) {
        let last = match self.read(size, &done, &tell).await {
            Ok(()) => Told::Unchanged { notices: self.image.take_notices() },
            Err(failure) => Told::Failed(failure),
        };
        // Whoever does not listen any more needs no answer.
        let _ = tell.send(last).await;
    }

    async fn read(&self, size: u64, done: &AtomicU64, tell: &mpsc::Sender<Told>) -> Result<(), Failure> {
        let scope = Scope { size, ..Scope::whole(&self.image, CHUNK, self.holes) };
        let mut survey = Survey::new(&self.image, &self.engine, &self.pool, scope);
        loop {
            // Many zeros are one step, and yet there is progress.
            let found = tokio::select! {
                found = survey.next() => found,
                () = sleep(PROGRESS) => {
                    done.store(survey.done(), Ordering::Relaxed);
                    continue;
                }
            };
            // A change explains a short read better than the read does.
            let found = found.map_err(|failure| self.changed().err().unwrap_or(failure))?;
            done.store(survey.done(), Ordering::Relaxed);
            let told = match found {
                None => return self.changed(),
                // A chunk is a granule, which is one leaf.
                Some(Piece::Data { leaves, .. }) => Told::Data(leaves[0]),
                Some(Piece::Zero { count, .. }) => Told::Zero(count),
            };
            if tell.send(told).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Fails when the image is not what it was when it was opened.
    fn changed(&self) -> Result<(), Failure> {
        let failed = |reason| Failure::new(exit::FAILED, reason);
        match self.image.change_since(&self.identity).map_err(|e| failed(e.to_string()))? {
            None => Ok(()),
            Some(what) => Err(failed(format!(
                "{} changed while it was read ({what}): stop what writes it and verify again",
                self.image.path().display()
            ))),
        }
    }
}
