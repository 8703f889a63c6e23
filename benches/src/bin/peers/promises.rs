//! What vmferry promises, and whether it holds.

use std::fmt;

use crate::results::{Content, Kind, Row, Scene, Store, Wire};

/// The reference of every ratio.
pub const RAW: &str = "raw loop 4";

/// A bound for one ratio in one scene.
struct Promise {
    scene: Scene,
    text: &'static str,
    bound: Bound,
    ratio: fn(&Table<'_>) -> Result<Ratio, String>,
}

/// What two rows give.
#[derive(Debug)]
struct Ratio {
    value: f64,
    rows: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A promise with what was measured.
#[derive(Debug)]
pub struct Verdict {
    scene: Scene,
    text: &'static str,
    bound: Bound,
    /// The ratio, or why there is none.
    ratio: Result<Ratio, String>,
}

impl Verdict {
    /// False also when the ratio is not known.
    fn holds(&self) -> bool {
        match (&self.ratio, self.bound) {
            (Ok(ratio), Bound::AtLeast(bound)) => ratio.value >= bound,
            (Ok(ratio), Bound::AtMost(bound)) => ratio.value <= bound,
            (Err(_), _) => false,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::AtMost(bound) => ("≤", bound),
        };
        write!(out, "{}: {} {sign} {bound}: ", self.scene, self.text)?;
        let verdict = if self.holds() { "holds" } else { "does not hold" };
        match &self.ratio {
            Ok(Ratio { value, rows }) => write!(out, "{value:.3}, **{verdict}** ({rows})"),
            Err(reason) => write!(out, "**not known**: {reason}"),
        }
    }
}

/// The verdicts for the scenes that were run.
pub fn judge(scenes: &[(Scene, Vec<Row<'_>>)]) -> Vec<Verdict> {
    let table = |scene: Scene| scenes.iter().find(|(found, _)| *found == scene).map(|(_, rows)| Table(rows));
    promises()
        .into_iter()
        .filter_map(|promise| {
            Some(Verdict {
                scene: promise.scene,
                text: promise.text,
                bound: promise.bound,
                ratio: (promise.ratio)(&table(promise.scene)?),
            })
        })
        .collect()
}

/// The scenes that promises are about.
pub fn scenes() -> Vec<Scene> {
    let mut scenes: Vec<Scene> = promises().into_iter().map(|promise| promise.scene).collect();
    scenes.dedup();
    scenes
}

fn promises() -> Vec<Promise> {
    let scene = |link, store, image| Scene { link, store, image };
    let bare_disk = scene(Wire::Bare, Store::Disk, Content::Dense);
    let bare_memory = scene(Wire::Bare, Store::Memory, Content::Dense);
    let cable_dense = scene(Wire::Cable, Store::Disk, Content::Dense);
    let cable_sparse = scene(Wire::Cable, Store::Disk, Content::Sparse);
    let far = scene(Wire::Far, Store::Disk, Content::Dense);
    let promise = |scene, text, bound, ratio| Promise { scene, text, bound, ratio };
    vec![
        promise(bare_disk, "rate of vmferry tcp / raw loop 4", Bound::AtLeast(0.95), |t| {
            rate(t.tcp()?, t.row(RAW)?, Row::own)
        }),
        promise(bare_disk, "rate of vmferry tcp / fastest peer", Bound::AtLeast(1.2), |t| {
            rate(t.tcp()?, t.least("peer", Row::wall, |row| row.first().kind == Kind::Peer)?, Row::wall)
        }),
        promise(bare_disk, "CPU time per byte of vmferry tcp / raw loop 4", Bound::AtMost(2.5), |t| {
            cost(t.tcp()?, t.row(RAW)?, Row::cpu_per_gb)
        }),
        promise(bare_disk, "CPU time per byte of vmferry tcp / nbdcopy's least", Bound::AtMost(0.55), |t| {
            cost(t.tcp()?, t.least("nbdcopy", Row::cpu_per_gb, is_nbdcopy)?, Row::cpu_per_gb)
        }),
        promise(bare_memory, "rate of vmferry tcp / fastest nbdcopy", Bound::AtLeast(1.3), |t| {
            rate(t.tcp()?, t.least("nbdcopy", Row::wall, is_nbdcopy)?, Row::wall)
        }),
        promise(bare_memory, "rate of vmferry tls / tcp", Bound::AtLeast(0.65), |t| {
            rate(t.best("vmferry tls")?, t.tcp()?, Row::own)
        }),
        promise(cable_dense, "rate of vmferry tcp 4 / raw loop 4", Bound::AtLeast(0.99), tcp4_rate),
        promise(cable_dense, "rate of vmferry tls 4 / raw loop 4", Bound::AtLeast(0.99), tls4_rate),
        promise(cable_sparse, "time of vmferry tcp 4 / raw loop 4", Bound::AtMost(1.05), |t| {
            cost(t.row("vmferry tcp 4")?, t.row(RAW)?, Row::own)
        }),
        promise(cable_sparse, "time of vmferry tls 4 / raw loop 4", Bound::AtMost(1.05), |t| {
            cost(t.row("vmferry tls 4")?, t.row(RAW)?, Row::own)
        }),
        promise(far, "rate of vmferry tcp 4 / raw loop 4", Bound::AtLeast(0.97), tcp4_rate),
        promise(far, "rate of vmferry tls 4 / raw loop 4", Bound::AtLeast(0.97), tls4_rate),
    ]
}

fn tcp4_rate(table: &Table<'_>) -> Result<Ratio, String> {
    rate(table.row("vmferry tcp 4")?, table.row(RAW)?, Row::own)
}

fn tls4_rate(table: &Table<'_>) -> Result<Ratio, String> {
    rate(table.row("vmferry tls 4")?, table.row(RAW)?, Row::own)
}

fn is_nbdcopy(row: &Row<'_>) -> bool {
    row.name().starts_with("nbdcopy")
}

/// A median of a row.
type Figure<'a> = fn(&Row<'a>) -> Option<f64>;

/// `figure` of ours in those of the other.
fn cost<'a>(ours: &Row<'a>, other: &Row<'a>, figure: Figure<'a>) -> Result<Ratio, String> {
    let value = |row: &Row<'a>| figure(row).ok_or(format!("{} has no figure for it", row.name()));
    let rows = format!("{}, {}", ours.name(), other.name());
    Ok(Ratio { value: value(ours)? / value(other)?, rows })
}

/// Our rate in rates of the other, by what `clock` says.
fn rate<'a>(ours: &Row<'a>, other: &Row<'a>, clock: Figure<'a>) -> Result<Ratio, String> {
    let Ratio { value, rows } = cost(ours, other, clock)?;
    Ok(Ratio { value: 1.0 / value, rows })
}

/// The rows of one scene. vmferry and the raw loop are compared by their own clocks, which run
/// from the first read to the durable answer; peers have none, so with them the wall decides.
struct Table<'a>(&'a [Row<'a>]);

impl<'a> Table<'a> {
    /// A row none of whose runs failed.
    fn row(&self, name: &str) -> Result<&'a Row<'a>, String> {
        let row = self.0.iter().find(|row| row.name() == name).ok_or(format!("{name} was not run"))?;
        if row.failures().is_empty() { Ok(row) } else { Err(format!("{name} failed")) }
    }

    /// vmferry over plain TCP with the number of connections that suits it best.
    fn tcp(&self) -> Result<&'a Row<'a>, String> {
        self.best("vmferry tcp")
    }

    /// The fastest of the rows of vmferry that begin with `name`. Where one failed, none is best.
    fn best(&self, name: &str) -> Result<&'a Row<'a>, String> {
        let mut rows = self.0.iter().filter(|row| row.name().starts_with(name));
        if let Some(row) = rows.find(|row| !row.failures().is_empty()) {
            return Err(format!("{} failed", row.name()));
        }
        self.least(name, Row::own, |row| row.name().starts_with(name))
    }

    /// The row with the least `figure` among some; runs that failed say nothing about the others.
    fn least(
        &self,
        what: &str,
        figure: Figure<'a>,
        which: impl Fn(&Row<'_>) -> bool,
    ) -> Result<&'a Row<'a>, String> {
        let rows = self.0.iter().filter(|row| which(row));
        let valued = rows.filter_map(|row| Some((figure(row)?, row)));
        let least = valued.min_by(|(a, _), (b, _)| a.total_cmp(b));
        least.map(|(_, row)| row).ok_or(format!("no run of a {what} came to its end"))
    }
}
