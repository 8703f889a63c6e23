//! Runs jobs at random, disturbs them at random, and checks what they promised.
//!
//! Each job has two hosts, a disk, images and options of its own, all chosen by its seed. It is
//! disturbed for some attempts, and the same command is run again until it is done. Then every image
//! must be equal, the source what it was, and nothing else left. A job is chosen by its seed alone, so
//! that one that failed can be run again (the timing of the machine is not repeated).
//!
//! Rooms: `plan` what a job is, `place` its disk and images, `attempt` one run of the command under
//! faults, `job` all attempts and what must hold after them, `report` the numbers.

mod attempt;
mod job;
mod place;
mod plan;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use testbed::images::content::Numbers;

use report::Report;

/// Disturb random jobs and check what they promised.
#[derive(Debug, Args)]
pub struct Soak {
    /// Begin new jobs for so long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Chooses the jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Jobs at a time.
    #[arg(long, default_value_t = 3)]
    jobs: u64,
    /// Run this one job, known by its own seed, and tell its story.
    #[arg(long, value_name = "SEED")]
    job: Option<u64>,
    /// The command under test; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    vmferry: Option<PathBuf>,
    /// Where images and disks are made.
    #[arg(long, value_name = "FOLDER", default_value = "/var/tmp")]
    place: PathBuf,
}

/// When so much does not hold, no new job begins.
const ENOUGH: u64 = 5;

/// What all jobs know.
struct Bench {
    vmferry: PathBuf,
    testbed: PathBuf,
    place: PathBuf,
    report: Report,
}

impl Soak {
    /// Runs the jobs; true when all that was promised held.
    pub fn run(self) -> Result<bool, crate::cli::Failure> {
        let testbed = std::env::current_exe()?;
        let vmferry = self.vmferry.unwrap_or_else(|| testbed.with_file_name("vmferry")).canonicalize()?;
        let bench = Bench { vmferry, testbed, place: self.place, report: Report::default() };
        if let Some(seed) = self.job {
            let story = job::run(&bench, seed);
            story.iter().for_each(|line| println!("{line}"));
            println!("{}", bench.report);
            return Ok(bench.report.wrongs() == 0);
        }
        println!("seed {}: {} s, {} jobs at a time", self.seed, self.seconds, self.jobs);
        let (begun, length) = (Instant::now(), Duration::from_secs(self.seconds));
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while begun.elapsed() < length && bench.report.wrongs() < ENOUGH {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        job::run(&bench, seed_of(self.seed, number));
                    }
                });
            }
        });
        println!("seed {}: {} s\n{}", self.seed, begun.elapsed().as_secs(), bench.report);
        Ok(bench.report.wrongs() == 0)
    }
}

/// The seed of one job of a run.
fn seed_of(run: u64, number: u64) -> u64 {
    let mut numbers = Numbers::new(run.wrapping_mul(1 << 32).wrapping_add(number));
    // Short enough to be typed.
    numbers.below(1 << 40)
}
