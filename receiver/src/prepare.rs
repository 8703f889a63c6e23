//! From what the sender wants to a job that may begin: everything is checked, then the part files are
//! made; all of them or none.

use std::sync::{Arc, Mutex};

use blockio::{Engine, Pool};
use proto::control::{Earlier, Failure, LANES_MAX, Open};
use proto::extents::RunSet;
use proto::geometry::ChunkSize;
use proto::manifest;
use proto::session::ReceiverSession;
use tokio::sync::Notify;

use crate::flush::Window;
use crate::job::{Allowance, Receiving, Setting};
use crate::meter::Meter;
use crate::part::Part;
use crate::readback::Expected;
use crate::resume::{self, Begin, Disk};
use crate::target::{self, Spot};

/// Writes in flight besides one buffer per lane.
const WRITE_DEPTH: usize = 16;

/// Checks and makes everything. Waits for the disk.
///
/// # Errors
/// A sentence, exit code 3: nothing was changed.
pub(crate) fn prepare(open: &mut Open, setting: &mut Setting) -> Result<Receiving, Failure> {
    let refused = |reason: String| Failure::new(3, reason);
    manifest::check(&open.images).map_err(refused)?;
    setting.asked.as_ref().map_or(Ok(()), |asked| asked.terms.hold(open))?;
    let chunk = ChunkSize::new(u64::from(open.chunk)).map_err(refused)?;
    if open.lanes == 0 || open.lanes > LANES_MAX {
        return Err(refused(format!("{} lanes are not possible: 1 to {LANES_MAX}", open.lanes)));
    }
    let slots = slots(open.lanes as usize, chunk, setting.memory)?;
    if let Some(Allowance { ground, lease }) = &mut setting.allowance {
        ground.check(open)?;
        let hashes = if open.readback { Expected::bytes(open.images.iter(), chunk) } else { 0 };
        let buffers = slots as u64 * u64::from(chunk.bytes());
        lease.take(open.lanes, buffers.saturating_add(hashes)).map_err(refused)?;
    }
    let ground = setting.allowance.as_ref().map(|a| &a.ground);
    let destination = target::resolve(open, setting.direct, ground)?;
    let broke = |e: blockio::Error| Failure::new(3, e.to_string());
    let pool = Pool::new(slots, chunk.bytes() as usize).map_err(broke)?;
    let engine = Engine::start(setting.engine, 64, &pool).map_err(broke)?;
    let disk = Disk { engine, pool };
    let sizes: Vec<u64> = open.images.iter().map(|i| i.size).collect();
    let mut session = ReceiverSession::new(open.epoch, chunk, &sizes);
    let mut parts = Parts::default();
    match destination {
        target::Destination::Device(device) => {
            parts.all.extend(open.images.first().map(|entry| Arc::new(Part::on(device, entry))));
        }
        target::Destination::Files(_) if open.dry_run => {}
        target::Destination::Files(spots) => {
            if let Err(failure) = parts.make(spots, open, setting.direct, &mut session, &disk) {
                parts.unmake();
                return Err(failure);
            }
        }
    }
    parts.earlier.resize(open.images.len(), Earlier::Nothing);
    parts.covered.resize(open.images.len(), Arc::default());
    Ok(Receiving {
        chunk,
        epoch: open.epoch,
        lanes: open.lanes,
        parts: parts.all,
        earlier: parts.earlier,
        readback: open.readback.then(|| Expected::beside(&parts.covered, &sizes, chunk)),
        covered: parts.covered,
        pool: disk.pool,
        engine: disk.engine,
        meter: Meter::new(),
        window: Window::new(open.sync_window, setting.direct),
        acks: Notify::new(),
        session: Mutex::new(session),
        _lease: setting.allowance.take().map(|a| a.lease),
    })
}

#[derive(Default)]
struct Parts {
    all: Vec<Arc<Part>>,
    earlier: Vec<Earlier>,
    covered: Vec<Arc<RunSet>>,
}

impl Parts {
    fn make(
        &mut self,
        spots: Vec<Spot>,
        open: &Open,
        direct: bool,
        session: &mut ReceiverSession,
        disk: &Disk,
    ) -> Result<(), Failure> {
        for ((image, entry), spot) in (0u32..).zip(&open.images).zip(spots) {
            let (target, found) = match spot {
                Spot::Free(target, found) => (target, found),
                Spot::Complete(target, ledger, tree) => {
                    self.all.push(Arc::new(Part::complete(&target, entry, ledger)?));
                    self.earlier.push(Earlier::Complete { tree });
                    self.covered.push(Arc::default());
                    continue;
                }
            };
            let begin = resume::begin(&target, entry, found, open.force, open.readback, disk)?;
            let (mut earlier, mut covered) = (Earlier::Nothing, RunSet::new());
            if let Begin::Resume(left) = &begin {
                covered = session.resume(image, &left.durable);
                let granules = resume::tell(&left.ledger, &covered, |run| session.resumed(image, run))
                    .map_err(|e| Failure::new(3, format!("{}: {e}", left.ledger.path().display())))?;
                if granules > 0 {
                    earlier = Earlier::Durable { granules };
                }
            }
            self.all.push(Arc::new(Part::create(&target, entry, begin, direct)?));
            self.earlier.push(earlier);
            self.covered.push(Arc::new(covered));
        }
        Ok(())
    }

    /// What an earlier attempt left stays.
    fn unmake(&self) {
        for (part, earlier) in self.all.iter().zip(&self.earlier) {
            if *earlier == Earlier::Nothing {
                part.remove();
            }
        }
    }
}

/// Buffers: one reserved per lane, and the writes in flight.
fn slots(lanes: usize, chunk: ChunkSize, memory: Option<u64>) -> Result<usize, Failure> {
    let Some(memory) = memory else { return Ok(lanes + WRITE_DEPTH) };
    let slots = usize::try_from(memory / u64::from(chunk.bytes())).unwrap_or(usize::MAX);
    if slots < lanes + 1 {
        let reason = format!("{lanes} streams with chunks of {chunk} do not fit into --memory {memory}");
        return Err(Failure::new(3, reason));
    }
    Ok(slots.min(lanes + 64))
}
