//! What was measured: single runs, as the JSON file has them, and their medians.

use std::fmt;
use std::fs;
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vmferry_benches::figures;

use crate::Failed;
use crate::machine::Machine;

/// The link between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// A veth pair as fast as the machine.
    Bare,
    /// 4950 Mbit/s in all, 3700 per connection.
    Cable,
    /// The same with a round trip of 20 ms.
    Far,
}

/// Where both images lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// A folder on a disk.
    Disk,
    /// /dev/shm.
    Memory,
}

/// What is in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Random bytes from end to end.
    Dense,
    /// Random extents of 4 KiB to 1 MiB, a quarter of the size; holes between.
    Sparse,
}

/// What every contender is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scene {
    /// The link.
    pub link: Wire,
    /// The disks.
    pub store: Store,
    /// The image.
    pub image: Content,
}

impl fmt::Display for Scene {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned());
        let names = [
            name(self.link.to_possible_value()),
            name(self.store.to_possible_value()),
            name(self.image.to_possible_value()),
        ];
        out.write_str(&names.map(Option::unwrap_or_default).join("/"))
    }
}

/// What a contender is to the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The physical bound.
    Raw,
    /// The tool under test.
    Vmferry,
    /// Another tool for the same task.
    Peer,
    /// Not the same task: measured to know the link.
    Information,
}

/// One contender, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Where.
    pub scene: Scene,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Data in it (what is no hole) in bytes.
    pub data_bytes: u64,
    /// Name of the contender.
    pub contender: String,
    /// What it is.
    pub kind: Kind,
    /// Whether the tool checks what arrived.
    pub checked: String,
    /// Number of the round.
    pub round: usize,
    /// What came out.
    pub outcome: Outcome,
}

/// The figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The copy is complete, durable and equal.
    Done(Figures),
    /// It is not.
    Failed(String),
}

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// From the start of the command to the durable end, in seconds.
    pub wall_seconds: f64,
    /// What the tool itself says, from its first read to the durable answer.
    pub own_seconds: Option<f64>,
    /// CPU time of both ends, in seconds.
    pub cpu_seconds: f64,
    /// Peak memory of the source's processes, in bytes.
    pub source_memory: u64,
    /// Peak memory of the destination's processes, in bytes.
    pub destination_memory: u64,
    /// Most TCP connections seen at a time.
    pub connections: usize,
    /// The copy takes no more of the disk than the data does; `None` for a dense image.
    pub holes_kept: Option<bool>,
}

/// A file of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Day, as 2026-12-31.
    pub date: String,
    /// What it was measured on.
    pub machine: Machine,
    /// Name and version of each tool.
    pub tools: Vec<(String, String)>,
    /// Every run.
    pub runs: Vec<Run>,
}

impl Results {
    /// Reads one file.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{} is no result: {e}", path.display()).into())
    }

    /// Writes one file.
    pub fn write(&self, path: &Path) -> Result<(), Failed> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()).into())
    }

    /// Adds what another process measured on the same machine.
    ///
    /// # Errors
    /// When it was another machine, or an image of another size in the same scene.
    pub fn add(&mut self, other: Self) -> Result<(), Failed> {
        if self.machine.cpu != other.machine.cpu || self.machine.kernel != other.machine.kernel {
            return Err("these results are of different machines".into());
        }
        let differs = |a: &Run, b: &Run| a.scene == b.scene && a.image_bytes != b.image_bytes;
        if let Some(run) = other.runs.iter().find(|run| self.runs.iter().any(|own| differs(own, run))) {
            return Err(format!("these results of {} are of images of different sizes", run.scene).into());
        }
        self.date = self.date.clone().max(other.date);
        for tool in other.tools {
            if !self.tools.contains(&tool) {
                self.tools.push(tool);
            }
        }
        self.runs.extend(other.runs);
        Ok(())
    }

    /// Scenes in the order in which they were run, each with its rows.
    pub fn scenes(&self) -> Vec<(Scene, Vec<Row<'_>>)> {
        let mut scenes: Vec<(Scene, Vec<Row<'_>>)> = Vec::new();
        for run in &self.runs {
            let at = scenes.iter().position(|(scene, _)| *scene == run.scene).unwrap_or_else(|| {
                scenes.push((run.scene, Vec::new()));
                scenes.len() - 1
            });
            let rows = &mut scenes[at].1;
            match rows.iter_mut().find(|row| row.name() == run.contender) {
                Some(row) => row.runs.push(run),
                None => rows.push(Row { runs: vec![run] }),
            }
        }
        scenes
    }
}

/// All runs of one contender in one scene; at least one.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The runs.
    pub runs: Vec<&'a Run>,
}

impl<'a> Row<'a> {
    /// Any of the runs, for what they share.
    pub fn first(&self) -> &Run {
        self.runs[0]
    }

    /// Name of the contender.
    pub fn name(&self) -> &str {
        &self.first().contender
    }

    /// Why runs failed.
    pub fn failures(&self) -> Vec<&'a str> {
        let reason = |run: &&'a Run| match &run.outcome {
            Outcome::Failed(reason) => Some(reason.as_str()),
            Outcome::Done(_) => None,
        };
        self.runs.iter().filter_map(reason).collect()
    }

    /// The runs that came to their end.
    pub fn figures(&self) -> impl Iterator<Item = Figures> {
        self.runs.iter().filter_map(|run| match run.outcome {
            Outcome::Done(figures) => Some(figures),
            Outcome::Failed(_) => None,
        })
    }

    /// Median of one figure over these runs; `None` when no run has it.
    pub fn median(&self, figure: impl Fn(Figures) -> Option<f64>) -> Option<f64> {
        median(self.figures().filter_map(figure))
    }

    /// Median time from start to durable end, in seconds.
    pub fn wall(&self) -> Option<f64> {
        self.median(|f| Some(f.wall_seconds))
    }

    /// Median time by the tool's own clock, in seconds.
    pub fn own(&self) -> Option<f64> {
        self.median(|f| f.own_seconds)
    }

    /// Median CPU time of both ends for 10^9 bytes of data, in seconds.
    pub fn cpu_per_gb(&self) -> Option<f64> {
        let gigabytes = self.first().data_bytes as f64 / 1e9;
        self.median(|f| Some(f.cpu_seconds / gigabytes))
    }
}

/// The median; `None` of none.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values = values.peekable();
    values.peek()?;
    Some(figures::median(values))
}
