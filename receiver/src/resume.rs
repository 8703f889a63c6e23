//! Whether an earlier attempt's copy is gone on with, or started over.
//!
//! What its ledger calls durable is believed when the file is the ledger's, the source is what it
//! was then, and a sample of the granules is what was noted. Goals: nothing that is doubtful ends up
//! in a copy that is called complete; what cannot be gone on with is said, with the reason.

use std::path::Path;
use std::sync::Arc;

use blockio::{Engine, Image, Pool};
use proto::control::Failure;
use proto::extents::{RunSet, is_zero};
use proto::geometry::GRANULE;
use proto::granules::{Content, Run};
use proto::leaves::leaf_hash;
use proto::manifest::ImageEntry;
use tokio::task::JoinSet;

use crate::delta::Older;
use crate::ledger::{self, Ledger, LedgerError, Origin, Shelf};
use crate::leftover::{self, Leftover, Likeness};
use crate::target::{Target, refuse};

/// Granules that are read back before a ledger is believed. Another content shows in the first; what
/// changed in places only would not show in many more either.
const SAMPLE: u64 = 64;
/// Reads in flight.
const DEPTH: usize = 4;

/// How the copy of one image begins.
#[derive(Debug)]
pub(crate) enum Begin {
    /// With nothing; the user should know why, if there was something.
    Fresh(Option<String>),
    /// With what an earlier attempt left.
    Resume(Resumed),
    /// With an older copy.
    Delta(Older),
}

/// What an earlier attempt left.
#[derive(Debug)]
pub(crate) struct Resumed {
    /// The copy.
    pub(crate) image: Image,
    /// What of it is durable.
    pub(crate) ledger: Ledger,
    /// The same, as granules.
    pub(crate) durable: RunSet,
}

/// What reads it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) engine: Engine,
    pub(crate) pool: Pool,
}

/// Decides what becomes of what an earlier attempt left, and clears it away if it is not to be used.
/// With `all` everything durable is read back, else a sample. Waits for the disk.
///
/// # Errors
/// A sentence, exit code 3.
pub(crate) fn begin(
    target: &Target,
    entry: &ImageEntry,
    found: Option<Leftover>,
    force: bool,
    all: bool,
    disk: &Disk,
) -> Result<Begin, Failure> {
    let Some(found) = found else {
        leftover::shelf(target).clear();
        return Ok(Begin::Fresh(None));
    };
    let path = target.path();
    let over = |why: &str| {
        leftover::clear(target)?;
        Ok(Begin::Fresh(Some(format!("an unfinished copy of {} was started over: {why}", path.display()))))
    };
    let Leftover { image, ledger } = found;
    let ledger = match ledger {
        Ok(Some(ledger)) => ledger,
        Ok(None) => return over("nothing of it was known to be durable"),
        Err(e) => return over(&e.to_string()),
    };
    let likeness = leftover::likeness(image.file(), &ledger.head().copy);
    if likeness == Likeness::Another {
        return over("its ledger is about another file");
    }
    let head = ledger.head();
    match head.origin {
        Origin::Nothing => {}
        Origin::Clone => return over("it was begun as a delta"),
        Origin::InPlace => {
            return refuse(format!(
                "{} is a copy whose update in place was interrupted: finish that with --delta, or give it up with '{} --force' on the destination",
                image.path().display(),
                leftover::drop_command(target)
            ));
        }
    }
    if head.size != entry.size && !force {
        return refuse(format!(
            "{} has {} bytes now, and had {} when {}, which is unfinished, was begun: --force starts it over, '{}' on the destination removes it",
            entry.name,
            entry.size,
            head.size,
            image.path().display(),
            leftover::drop_command(target)
        ));
    }
    if !head.is_of(entry) {
        return over("the source is not what it was then");
    }
    if image.size() < entry.size {
        return over("it was cut off");
    }
    let durable = match ledger.durable() {
        Ok(durable) => durable,
        Err(e) => return over(&e.to_string()),
    };
    let all = all || likeness == Likeness::Maybe;
    let checked = tokio::runtime::Handle::current().block_on(check(&image, &ledger, &durable, all, disk));
    match checked {
        Ok(()) => {}
        Err(Doubt::Differs(granule)) if likeness == Likeness::Maybe || force => {
            return over(&format!("it does not hold what its ledger says, at byte {}", byte(granule)));
        }
        Err(Doubt::Differs(granule)) => {
            return refuse(format!(
                "{} does not hold what its ledger says, at byte {}: something else wrote it, or its disk lost data (smartctl, dmesg): --force starts it over, '{}' on the destination removes it",
                image.path().display(),
                byte(granule),
                leftover::drop_command(target)
            ));
        }
        Err(Doubt::Ledger(e)) => return over(&e.to_string()),
        Err(Doubt::Disk(e)) => return Err(Failure::new(3, e.to_string())),
    }
    Ok(Begin::Resume(Resumed { image, ledger, durable }))
}

/// Looks for what an earlier attempt left on a device, which is claimed: its ledger, if what is on the
/// device is what that says. All of it is compared then, since nothing tells that a device has changed.
/// Waits for the disk.
///
/// # Errors
/// A sentence, exit code 3: it is another disk.
pub(crate) fn on_device(
    device: &Image,
    path: &Path,
    entry: &ImageEntry,
    shelf: &Shelf<'_>,
    all: bool,
    disk: &Disk,
) -> Result<Option<Ledger>, Failure> {
    let Ok(Some(ledger)) = Ledger::open(shelf) else { return Ok(None) };
    let head = ledger.head();
    let same = (&head.name, head.size, head.device, &head.copy)
        == (&entry.name, entry.size, entry.sector.is_some(), &ledger::Copy::Device);
    let Some(durable) = ledger.durable().ok().filter(|_| same) else { return Ok(None) };
    match tokio::runtime::Handle::current().block_on(check(device, &ledger, &durable, all, disk)) {
        Ok(()) => Ok(Some(ledger)),
        Err(Doubt::Ledger(_)) => Ok(None),
        Err(Doubt::Disk(e)) => Err(Failure::new(3, e.to_string())),
        Err(Doubt::Differs(granule)) => refuse(format!(
            "{} is not the disk that an unfinished copy of {} is on, or something else wrote to it (byte {} differs): find the right one, or forget that copy: vmferry drop {}",
            path.display(),
            entry.name,
            byte(granule),
            path.display()
        )),
    }
}

/// Why a ledger is not believed.
#[derive(Debug)]
enum Doubt {
    /// This granule is not what was noted.
    Differs(u64),
    /// The ledger itself.
    Ledger(LedgerError),
    /// It cannot be read.
    Disk(blockio::Error),
}

fn byte(granule: u64) -> u64 {
    granule * u64::from(GRANULE)
}

/// Reads granules back and compares them with what was noted.
async fn check(
    image: &Image,
    ledger: &Ledger,
    durable: &RunSet,
    all: bool,
    disk: &Disk,
) -> Result<(), Doubt> {
    let records: u64 = durable.iter().map(|run| run.end - run.start).sum();
    let step = if all { 1 } else { (records / SAMPLE).max(1) };
    let ledger_size = ledger.head().size;
    let image = Arc::new(image.clone());
    let mut reads: JoinSet<Result<(), Doubt>> = JoinSet::new();
    let (mut at, mut seen) = (0, 0u64);
    while let Some((runs, next)) = ledger.runs(at).map_err(Doubt::Ledger)? {
        at = next;
        for run in runs {
            let before = seen;
            seen += run.count();
            // One of every `step` granules; of a run of zeros what is no hole, or its first one.
            if before / step == seen / step && before != 0 {
                continue;
            }
            if reads.len() >= DEPTH
                && let Some(done) = reads.join_next().await
            {
                settled(done)?;
            }
            let (image, disk) = (image.clone(), disk.clone());
            reads.spawn(async move { holds(&image, run, ledger_size, all, &disk).await });
        }
    }
    while let Some(done) = reads.join_next().await {
        settled(done)?;
    }
    Ok(())
}

fn settled(done: Result<Result<(), Doubt>, tokio::task::JoinError>) -> Result<(), Doubt> {
    done.unwrap_or_else(|e| Err(Doubt::Ledger(LedgerError::Io(std::io::Error::other(e.to_string())))))
}

/// Whether the disk gives back what was noted.
async fn holds(image: &Image, run: Run, size: u64, all: bool, disk: &Disk) -> Result<(), Doubt> {
    let Content::Zero(_) = run.content else {
        return one(image, run, size, disk).await;
    };
    let end = byte(run.range().end).min(size);
    let mut at = byte(run.start);
    // Holes are zero.
    while let Some(data) = image.next_data(at).map_err(Doubt::Disk)?.filter(|data| data.start < end) {
        let start = data.start / u64::from(GRANULE);
        one(image, Run { start, content: Content::Zero(1) }, size, disk).await?;
        at = byte(start + 1);
        if at >= end || !all {
            break;
        }
    }
    Ok(())
}

async fn one(image: &Image, run: Run, size: u64, disk: &Disk) -> Result<(), Doubt> {
    let start = byte(run.start);
    let len = u64::from(GRANULE).min(size - start) as usize; // at most a granule
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let buffer = disk.pool.take().await;
        let piece = (len - bytes.len()).min(buffer.len());
        let (buffer, read) = disk.engine.read(image, buffer, start + bytes.len() as u64, piece).await;
        match read.map_err(Doubt::Disk)? {
            0 => return Err(Doubt::Differs(run.start)),
            got => bytes.extend_from_slice(&buffer[..got.min(piece)]),
        }
    }
    let fits = match run.content {
        Content::Data(cv) => leaf_hash(start, &bytes, size) == cv,
        Content::Zero(_) => is_zero(&bytes),
    };
    if fits { Ok(()) } else { Err(Doubt::Differs(run.start)) }
}

/// Tells what `covered` granules hold, in order; returns how many there are. Waits for the disk.
///
/// # Errors
/// Damaged, or what the file system says.
pub(crate) fn tell(ledger: &Ledger, covered: &RunSet, mut each: impl FnMut(Run)) -> Result<u64, LedgerError> {
    let (mut at, mut count) = (0, 0);
    loop {
        let (runs, next) = known(ledger, covered, at)?;
        for run in runs {
            count += run.count();
            each(run);
        }
        match next {
            Some(next) => at = next,
            None => return Ok(count),
        }
    }
}

/// What `covered` granules hold, from granule `from` on: some of them, in order, and where to go on;
/// `None`: there are no more. Waits for the disk.
///
/// # Errors
/// Damaged, or what the file system says.
pub(crate) fn known(
    ledger: &Ledger,
    covered: &RunSet,
    mut from: u64,
) -> Result<(Vec<Run>, Option<u64>), LedgerError> {
    while let Some((runs, next)) = ledger.runs(from)? {
        // Each is in one piece: what is covered are whole runs of durable granules, but for their ends.
        let cut = |run: Run| {
            let inside = covered.within(run.range()).next()?;
            let content = match run.content {
                Content::Zero(_) => Content::Zero(inside.end - inside.start),
                data @ Content::Data(_) => data,
            };
            Some(Run { start: inside.start, content })
        };
        let runs: Vec<Run> = runs.into_iter().filter_map(cut).collect();
        if !runs.is_empty() {
            return Ok((runs, Some(next)));
        }
        from = next;
    }
    Ok((Vec::new(), None))
}
