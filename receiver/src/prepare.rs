//! From what the sender wants to a job that may begin: everything is checked, then the part files are
//! made; all of them or none.

use std::sync::{Arc, Mutex};

use blockio::{Engine, Pool};
use proto::control::{Delta, Earlier, Failure, LANES_MAX, Open};
use proto::extents::RunSet;
use proto::geometry::ChunkSize;
use proto::manifest::{self, ImageEntry};
use proto::session::ReceiverSession;
use tokio::sync::Notify;

use crate::base::Base;
use crate::delta;
use crate::device::Device;
use crate::flush::Window;
use crate::job::{Allowance, Receiving, Setting};
use crate::ledger::{self, Head, Origin};
use crate::logbook::Logbook;
use crate::meter::Meter;
use crate::part::Part;
use crate::readback::Expected;
use crate::resume::{self, Begin, Disk};
use crate::state::State;
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
            if let Some(entry) = open.images.first() {
                parts.on(device, entry, open, chunk, &disk)?;
            }
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
    parts.bases.resize(open.images.len(), None);
    Ok(Receiving {
        chunk,
        epoch: open.epoch,
        lanes: open.lanes,
        parts: parts.all,
        earlier: parts.earlier,
        readback: open.readback.then(|| Expected::beside(&parts.covered, &sizes, chunk)),
        covered: parts.covered,
        bases: parts.bases,
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
    bases: Vec<Option<Arc<Base>>>,
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
            let (target, found, old) = match spot {
                Spot::Free(target, found, old) => (target, found, old),
                Spot::Complete(target, ledger, tree) => {
                    self.all.push(Arc::new(Part::complete(&target, entry, ledger)?));
                    self.earlier.push(Earlier::Complete { tree });
                    self.covered.push(Arc::default());
                    self.bases.push(None);
                    continue;
                }
            };
            let begin = match open.delta {
                Delta::No => resume::begin(&target, entry, found, open.force, open.readback, disk)?,
                how => delta::or_new(&target, entry, found, old, how, direct)?,
            };
            let (mut earlier, mut covered, mut base) = (Earlier::Nothing, RunSet::new(), None);
            if let Begin::Delta(older) = &begin {
                earlier = Earlier::Older;
                let (old, beside) = match &older.beside {
                    Some(old) => (old, true),
                    None => (&older.image, false),
                };
                let chunk = session.chunk();
                base = Some(Base::new(image, old, older.size, beside, chunk, &disk.engine, &disk.pool));
            }
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
            self.bases.push(base.map(Arc::new));
        }
        Ok(())
    }

    /// The device is the destination. What an earlier attempt left on it is compared, as an older copy.
    fn on(
        &mut self,
        mut device: Device,
        entry: &ImageEntry,
        open: &Open,
        chunk: ChunkSize,
        disk: &Disk,
    ) -> Result<(), Failure> {
        let state = State::open().filter(|_| !open.dry_run);
        let mut logbook = None;
        let mut older = open.delta != Delta::No && !open.dry_run;
        if let Some(state) = &state {
            let shelf = state.shelf(&device.path);
            let left = resume::on_device(&device.image, &device.path, entry, &shelf, open.readback, disk)?;
            if left.is_some() {
                let shown = device.path.display();
                device.notices.push(format!(
                    "an unfinished copy on {shown} is gone on with: what is there is compared"
                ));
                older = true;
            }
            let broke = |e: &dyn std::fmt::Display| Failure::new(3, e.to_string());
            let head = Head::new(entry, ledger::Copy::Device, Origin::Nothing).map_err(|e| broke(&e))?;
            // What it says stays true only while the source is what it was.
            logbook = Some(match left.filter(|ledger| ledger.head().is_of(entry)) {
                Some(ledger) => Logbook::open(state.folder.clone(), &shelf, ledger),
                None => {
                    shelf.clear();
                    Logbook::draft(state.folder.clone(), &shelf, head)
                }
            });
        }
        if older {
            self.earlier.push(Earlier::Older);
            let base = Base::new(0, &device.image, entry.size, false, chunk, &disk.engine, &disk.pool);
            self.bases.push(Some(Arc::new(base)));
        }
        self.all.push(Arc::new(Part::on(device, entry, logbook)));
        Ok(())
    }

    /// What an earlier attempt left stays.
    fn unmake(&self) {
        for (part, earlier) in self.all.iter().zip(&self.earlier) {
            // One that is changed in place gets its name back.
            if matches!(earlier, Earlier::Nothing | Earlier::Older) {
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
