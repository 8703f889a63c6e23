//! What was done, what was done to it, and what did not hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// What was called done, or has its name, is not equal; or the source changed.
    Mismatch,
    /// An attempt did not end.
    Hang,
    /// Processes or files were left.
    Leak,
    /// An attempt that nobody disturbed failed, or the job never came to its end.
    Stuck,
    /// The test bed itself failed.
    Bed,
}

/// The numbers of a run. All jobs write to it.
#[derive(Debug, Default)]
pub struct Report(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    jobs: u64,
    attempts: u64,
    refused: u64,
    bytes: u64,
    resumed: u64,
    faults: BTreeMap<&'static str, u64>,
    wrong: BTreeMap<Wrong, u64>,
}

impl Report {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job came to its end.
    pub fn done(&self, bytes: u64) {
        let mut sums = self.sums();
        sums.jobs += 1;
        sums.bytes += bytes;
    }

    /// An attempt ended with this exit code, having gone on with what an earlier one left or not.
    pub fn attempt(&self, exit: i32, resumed: bool) {
        let mut sums = self.sums();
        sums.attempts += 1;
        sums.refused += u64::from(exit == 3);
        sums.resumed += u64::from(resumed);
    }

    /// Something was done to a job.
    pub fn fault(&self, name: &'static str) {
        *self.sums().faults.entry(name).or_default() += 1;
    }

    /// Something does not hold; tells at once how to see it again.
    pub fn wrong(&self, kind: Wrong, seed: u64, what: &str, story: &[String]) {
        *self.sums().wrong.entry(kind).or_default() += 1;
        let story = story.join("\n  ");
        println!("{kind:?}: {what}\n  {story}\n  again: testbed soak --job {seed}");
    }

    /// How much does not hold.
    pub fn wrongs(&self) -> u64 {
        self.sums().wrong.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = self.sums();
        let mib = sums.bytes >> 20;
        writeln!(
            f,
            "jobs {}, attempts {} ({} went on, {} were refused), images {mib} MiB",
            sums.jobs, sums.attempts, sums.resumed, sums.refused
        )?;
        let faults: Vec<String> = sums.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "faults {}: {}", sums.faults.values().sum::<u64>(), faults.join(", "))?;
        let count = |kind| sums.wrong.get(&kind).copied().unwrap_or(0);
        write!(
            f,
            "mismatches {}, hangs {}, leaks {}, stuck {}, failures of the test bed {}",
            count(Wrong::Mismatch),
            count(Wrong::Hang),
            count(Wrong::Leak),
            count(Wrong::Stuck),
            count(Wrong::Bed)
        )
    }
}
