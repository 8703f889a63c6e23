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
    ratio: fn(&Table<'_>) -> Result<f64, String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A promise with what was measured.
#[derive(Debug)]
pub struct Verdict {
    /// The scene, for example `bare/disk/dense`.
    pub scene: String,
    /// What is compared with what.
    pub text: &'static str,
    bound: Bound,
    /// The ratio, or the contender that it lacks.
    pub ratio: Result<f64, String>,
}

impl Verdict {
    /// False also when the ratio is not known.
    pub fn holds(&self) -> bool {
        match (&self.ratio, self.bound) {
            (Ok(ratio), Bound::AtLeast(bound)) => *ratio >= bound,
            (Ok(ratio), Bound::AtMost(bound)) => *ratio <= bound,
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
        match &self.ratio {
            Ok(ratio) if self.holds() => write!(out, "{ratio:.3}, **holds**"),
            Ok(ratio) => write!(out, "{ratio:.3}, **does not hold**"),
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
                scene: promise.scene.to_string(),
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
        promise(bare_disk, "rate of vmferry tcp / raw loop 4", Bound::AtLeast(0.95), |t| t.rate(t.tcp()?)),
        promise(bare_disk, "rate of vmferry tcp / fastest peer", Bound::AtLeast(1.2), |t| {
            t.against(t.tcp()?, t.fastest("peer", |row| row.first().kind == Kind::Peer)?)
        }),
        promise(bare_disk, "CPU time per byte of vmferry tcp / raw loop 4", Bound::AtMost(2.5), |t| {
            Ok(cpu(t.tcp()?)? / cpu(t.row(RAW)?)?)
        }),
        promise(bare_disk, "CPU time per byte of vmferry tcp / nbdcopy's least", Bound::AtMost(0.55), |t| {
            Ok(cpu(t.tcp()?)? / t.least_cpu("nbdcopy")?)
        }),
        promise(bare_memory, "rate of vmferry tcp / fastest nbdcopy", Bound::AtLeast(1.3), |t| {
            t.against(t.tcp()?, t.fastest("nbdcopy", |row| row.name().starts_with("nbdcopy"))?)
        }),
        promise(bare_memory, "rate of vmferry tls / tcp", Bound::AtLeast(0.65), |t| {
            Ok(own(t.tcp()?)? / own(t.best("vmferry tls")?)?)
        }),
        promise(cable_dense, "rate of vmferry tcp 4 / raw loop 4", Bound::AtLeast(0.99), |t| {
            t.rate(t.row("vmferry tcp 4")?)
        }),
        promise(cable_dense, "rate of vmferry tls 4 / raw loop 4", Bound::AtLeast(0.99), |t| {
            t.rate(t.row("vmferry tls 4")?)
        }),
        promise(cable_sparse, "time of vmferry tcp 4 / raw loop 4", Bound::AtMost(1.05), |t| {
            Ok(own(t.row("vmferry tcp 4")?)? / own(t.row(RAW)?)?)
        }),
        promise(cable_sparse, "time of vmferry tls 4 / raw loop 4", Bound::AtMost(1.05), |t| {
            Ok(own(t.row("vmferry tls 4")?)? / own(t.row(RAW)?)?)
        }),
        promise(far, "rate of vmferry tcp 4 / raw loop 4", Bound::AtLeast(0.97), |t| {
            t.rate(t.row("vmferry tcp 4")?)
        }),
        promise(far, "rate of vmferry tls 4 / raw loop 4", Bound::AtLeast(0.97), |t| {
            t.rate(t.row("vmferry tls 4")?)
        }),
    ]
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

    fn best(&self, name: &str) -> Result<&'a Row<'a>, String> {
        // A run of vmferry that failed is no reason to judge it by the others.
        let mut rows = self.0.iter().filter(|row| row.name().starts_with(name));
        if let Some(row) = rows.find(|row| !row.failures().is_empty()) {
            return Err(format!("{} failed", row.name()));
        }
        least(self.0.iter().filter(|row| row.name().starts_with(name)), Row::own)
            .ok_or(format!("{name} was not run"))
    }

    /// The fastest of some peers; a run that failed says nothing about how fast the others were.
    fn fastest(&self, what: &str, which: impl Fn(&Row<'_>) -> bool) -> Result<&'a Row<'a>, String> {
        least(self.0.iter().filter(|row| which(row)), Row::wall).ok_or(format!("no {what} came to its end"))
    }

    fn least_cpu(&self, name: &str) -> Result<f64, String> {
        least(self.0.iter().filter(|row| row.name().starts_with(name)), Row::cpu_per_gb)
            .and_then(Row::cpu_per_gb)
            .ok_or(format!("no {name} came to its end"))
    }

    /// Rate in rates of the raw loop.
    fn rate(&self, row: &Row<'_>) -> Result<f64, String> {
        Ok(own(self.row(RAW)?)? / own(row)?)
    }

    /// Rate of one in rates of the other.
    fn against(&self, ours: &Row<'_>, other: &Row<'_>) -> Result<f64, String> {
        let wall = |row: &Row<'_>| row.wall().ok_or(format!("{} failed", row.name()));
        Ok(wall(other)? / wall(ours)?)
    }
}

/// The row for which `value` is least; rows without one are left out.
fn least<'a>(
    rows: impl Iterator<Item = &'a Row<'a>>,
    value: impl Fn(&'a Row<'a>) -> Option<f64>,
) -> Option<&'a Row<'a>> {
    let valued = rows.filter_map(|row| Some((value(row)?, row)));
    valued.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, row)| row)
}

fn own(row: &Row<'_>) -> Result<f64, String> {
    row.own().ok_or(format!("{} told no time", row.name()))
}

fn cpu(row: &Row<'_>) -> Result<f64, String> {
    row.cpu_per_gb().ok_or(format!("{} failed", row.name()))
}
