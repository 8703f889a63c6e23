//! One setting at a time: how the rate and the memory of a move change with it, the others being at
//! their defaults.
//!
//! Goal: no cliffs. Each axis has steps; every round runs all of them, in alternating order, so that
//! a machine that slows down slows all. Every copy is compared with its source. A step whose median
//! rate is more than 30 % below that of a neighbour is one that the axis does not hold at; the
//! exit code is 1 then. The axis `size` has limits of its own: see [`report`].
//! Non-goals: what the hardware could do (that is `against-rawloop`).

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod report;
mod steps;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use testbed::images;
use testbed::net::Shape;
use vmferry_benches::ferry::{self, Failed, Hosts};
use vmferry_benches::peaks::{self, Peaks};

use steps::{Axis, Step};

/// One setting of vmferry at a time, over a link between two hosts.
#[derive(Parser, Debug)]
struct Options {
    /// What is changed.
    #[arg(value_enum, default_values_t = [Axis::Streams, Axis::Chunk, Axis::Images, Axis::Size])]
    axes: Vec<Axis>,
    /// The link between the two hosts.
    #[arg(long, value_enum, default_value_t = Cable::Cable)]
    link: Cable,
    /// How the data is carried.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tls,tcp")]
    transport: Vec<Transport>,
    /// Data of each run in MiB.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// Rounds; every figure is a median over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// 512 MiB and one round.
    #[arg(long)]
    quick: bool,
    /// Write every run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Hold this lock file (flock) during each round: where others measure on the same machine.
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
    /// Folder for the images [default: beside this program].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Further words for `vmferry send`.
    #[arg(last = true)]
    more: Vec<String>,
}

/// Links.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Cable {
    /// As fast as the machine.
    Bare,
    /// 4950 Mbit/s in all, 3700 per connection.
    Cable,
}

/// Transports.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tls,
    Tcp,
}

impl Transport {
    fn as_str(self) -> &'static str {
        match self {
            Transport::Tls => "tls",
            Transport::Tcp => "tcp",
        }
    }
}

/// One move.
struct Run {
    step: usize,
    /// Data over the time from the first read to the last durable byte, Gb/s.
    gbps: f64,
    /// From the start of the command to its end, seconds.
    seconds: f64,
    peaks: Peaks,
    /// What vmferry said last.
    done: Value,
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.quick {
        (options.mib, options.rounds) = (512, 1);
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("axes: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything holds.
fn run(o: &Options) -> Result<bool, Failed> {
    let shape = match o.link {
        Cable::Bare => Shape::default(),
        Cable::Cable => Shape::mbit(4950, 3700),
    };
    let hosts = Hosts::up(shape)?;
    let mut holds = true;
    let mut raw = Vec::new();
    for axis in &o.axes {
        let folder = tempfile::tempdir_in(o.folder.as_deref().unwrap_or(hosts.tools()))?;
        let target = folder.path().join("arrived");
        fs::create_dir(&target)?;
        let quiet = quiet(o)?;
        let steps = axis.steps(folder.path(), o.mib << 20)?;
        Command::new("sync").arg("-f").arg(folder.path()).status()?;
        drop(quiet);
        let bench = Bench { hosts: &hosts, target: &target, more: &o.more };
        for transport in &o.transport {
            let mut runs = Vec::new();
            for round in 0..o.rounds {
                let quiet = self::quiet(o)?;
                let mut order: Vec<usize> = (0..steps.len()).collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for step in order {
                    let run = bench.run(step, &steps[step], *transport)?;
                    eprintln!(
                        "{axis} {} {} {round}: {:.3} Gb/s",
                        transport.as_str(),
                        steps[step].name,
                        run.gbps
                    );
                    raw.push(json!({
                        "axis": axis.to_string(), "step": steps[step].name, "transport": transport.as_str(),
                        "link": format!("{:?}", o.link).to_lowercase(), "mib": o.mib, "round": round,
                        "gbps": run.gbps, "seconds": run.seconds, "done": run.done,
                        "sender_peak_bytes": run.peaks.sender, "receiver_peak_bytes": run.peaks.receiver,
                    }));
                    runs.push(run);
                }
                drop(quiet);
                write(o.json.as_deref(), &raw)?;
                if o.lock.is_some() {
                    // Others who wait for the lock have their turn.
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            holds &= report::print(*axis, *transport, &steps, &runs);
        }
    }
    Ok(holds)
}

/// Waits until nobody else measures; nobody does as long as the file is open.
fn quiet(o: &Options) -> Result<Option<File>, Failed> {
    let Some(path) = &o.lock else { return Ok(None) };
    let file = File::options().create(true).append(true).open(path)?;
    file.lock()?;
    Ok(Some(file))
}

fn write(path: Option<&Path>, runs: &[Value]) -> Result<(), Failed> {
    let Some(path) = path else { return Ok(()) };
    Ok(fs::write(path, serde_json::to_vec_pretty(runs)?)?)
}

struct Bench<'a> {
    hosts: &'a Hosts,
    /// Folder on the receiving host.
    target: &'a Path,
    more: &'a [String],
}

impl Bench<'_> {
    /// Moves the images of a step, compares and removes what arrived.
    fn run(&self, index: usize, step: &Step, transport: Transport) -> Result<Run, Failed> {
        let mut words = vec!["--transport".to_owned(), transport.as_str().into()];
        words.extend(step.words.iter().chain(self.more).cloned());
        // With a slash at its end: a folder.
        let mut send = self.hosts.send(words, &step.images, &self.target.join(""));
        let started = Instant::now();
        let there = self.hosts.link().b();
        let (output, peaks) = peaks::watched(&mut send, there, &self.hosts.tools().join("vmferry"))?;
        let seconds = started.elapsed().as_secs_f64();
        let done = ferry::parse_last(&output.stdout)?;
        let gbps = ferry::rate(&done)?;
        let mut arrived = Vec::new();
        for image in &step.images {
            let copy = self.target.join(image.file_name().ok_or("an image has a name")?);
            if step.sparse {
                images::equal_data(image, &copy)?
            } else {
                images::equal(image, &copy)?
            }
            arrived.push(copy);
        }
        ferry::clean(self.target, &arrived)?;
        Ok(Run { step: index, gbps, seconds, peaks, done })
    }
}
