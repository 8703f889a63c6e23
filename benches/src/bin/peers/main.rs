//! vmferry against other tools that can copy an image, over the testbed's links.
//!
//! In each scene (link, store, image) every contender runs once a round. What it does is checked
//! and measured alike for all: durable at the end, equal to the source, time, CPU, memory.
//!
//! Non-goals: tuning the tools beyond their own options; comparing over real networks.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bed;
mod contenders;
mod machine;
mod measure;
mod promises;
mod report;
mod results;
mod run;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use bed::Bed;
use contenders::Contender;
use machine::{Machine, Origin, PROGRAMS};
use results::{Content, Outcome, Results, Run, Scene, Store, Wire};
use run::Limits;

/// Whatever goes wrong with the comparison itself.
pub type Failed = Box<dyn Error>;

/// vmferry against other tools that can copy an image.
#[derive(Parser, Debug)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Put the results of several runs together.
    Report {
        /// Files that --json wrote.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Write the document to this file.
        #[arg(long)]
        report: Option<PathBuf>,
        /// Write all results to this file.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

/// Without --links, --store and --images: the five scenes that vmferry's promises are about.
#[derive(Args, Debug)]
struct Options {
    /// Links: every one with every store and image [default: bare].
    #[arg(long, value_delimiter = ',')]
    links: Vec<Wire>,
    /// Where the images are [default: disk].
    #[arg(long, value_delimiter = ',')]
    store: Vec<Store>,
    /// What is in them [default: dense].
    #[arg(long, value_delimiter = ',')]
    images: Vec<Content>,
    /// Size of the dense image in MiB; the sparse one has twice that, a quarter of it data.
    #[arg(long, default_value_t = 4096)]
    mib: u64,
    /// Rounds; every figure is a median over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of the first round: rounds that are run one by one differ in their order by it.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_round: usize,
    /// 512 MiB, one round.
    #[arg(long, conflicts_with_all = ["mib", "rounds"])]
    quick: bool,
    /// Only contenders whose name has one of these in it, for example 'raw loop,vmferry tcp'.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Folder for the images of --store disk [default: beside this program].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Seconds after which a run has failed.
    #[arg(long, default_value_t = 1200)]
    timeout: u64,
    /// Hold an exclusive lock on this file, as flock(1) does, while an image is made and during
    /// each run: on a machine that others use, who keep quiet meanwhile.
    #[arg(long)]
    lock: Option<PathBuf>,
    /// Write every run to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the document to this file.
    #[arg(long)]
    report: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.verb {
        Some(Verb::Report { files, report, json }) => {
            merge(files).and_then(|results| write(&results, json.as_deref(), report.as_deref()))
        }
        None => compare(&cli.options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("peers: {e}");
            ExitCode::FAILURE
        }
    }
}

fn merge(files: &[PathBuf]) -> Result<Results, Failed> {
    let mut files = files.iter();
    let mut all = Results::read(files.next().ok_or("no file")?)?;
    for file in files {
        all.add(Results::read(file)?)?;
    }
    Ok(all)
}

/// # Errors
/// When a file cannot be written, or any run failed.
fn write(results: &Results, json: Option<&Path>, report: Option<&Path>) -> Result<(), Failed> {
    if let Some(path) = json {
        results.write(path)?;
    }
    if let Some(path) = report {
        std::fs::write(path, report::document(results))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    print!("{}", report::summary(results));
    match results.runs.iter().filter(|run| matches!(run.outcome, Outcome::Failed(_))).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} runs failed", results.runs.len()).into()),
    }
}

fn compare(o: &Options) -> Result<(), Failed> {
    let tools = std::env::current_exe()?.parent().ok_or("no folder of binaries")?.to_owned();
    let contenders = chosen(&o.only, &tools)?;
    let folder = o.folder.as_deref().unwrap_or(&tools);
    let mut results = Results {
        date: bed::said("date", &["-u", "+%F"])?.trim().to_owned(),
        machine: Machine::look(folder)?,
        tools: versions(&contenders, &tools),
        runs: Vec::new(),
    };
    let stop = watch_for_signals()?;
    let bench = Bench { o, tools: &tools, folder, contenders: &contenders, path: path(&tools)?, stop: &stop };
    let outcome = scenes(o).into_iter().try_for_each(|scene| bench.scene(scene, &mut results));
    // What there is, also when it ends early.
    let written = write(&results, o.json.as_deref(), o.report.as_deref());
    outcome.and(written)
}

fn scenes(o: &Options) -> Vec<Scene> {
    if o.links.is_empty() && o.store.is_empty() && o.images.is_empty() {
        return promises::scenes();
    }
    fn or<T: Copy>(given: &[T], default: T) -> Vec<T> {
        if given.is_empty() { vec![default] } else { given.to_vec() }
    }
    let (links, images) = (or(&o.links, Wire::Bare), or(&o.images, Content::Dense));
    let mut scenes = Vec::new();
    for store in or(&o.store, Store::Disk) {
        for image in &images {
            scenes.extend(links.iter().map(|link| Scene { link: *link, store, image: *image }));
        }
    }
    scenes
}

/// Contenders that were asked for and are here.
///
/// # Errors
/// When none was asked for, or a program is not here that should be.
fn chosen(only: &[String], tools: &Path) -> Result<Vec<Contender>, Failed> {
    let asked = |c: &Contender| only.is_empty() || only.iter().any(|part| c.name.contains(part.trim()));
    let mut contenders: Vec<Contender> = contenders::all().into_iter().filter(asked).collect();
    if contenders.is_empty() {
        return Err("--only names no contender".into());
    }
    let called = |c: &Contender, name: &str| c.programs.contains(&name);
    let mut packages = Vec::new();
    for program in PROGRAMS.iter().filter(|program| !program.is_there(tools)) {
        let name = program.name;
        let wanted = contenders.iter().any(|c| called(c, name));
        match program.origin {
            Origin::Elsewhere => contenders.retain(|c| !called(c, name)),
            Origin::Debian(package) if wanted && !packages.contains(&package) => packages.push(package),
            Origin::Here if wanted => {
                return Err(format!(
                    "{name} is not built: run `cargo build --release -p vmferry -p vmferry-testbed \
                     -p vmferry-benches`"
                )
                .into());
            }
            Origin::Debian(_) | Origin::Here => {}
        }
    }
    if packages.is_empty() {
        return Ok(contenders);
    }
    Err(format!("programs are missing: run `apt-get install {}`", packages.join(" ")).into())
}

fn versions(contenders: &[Contender], tools: &Path) -> Vec<(String, String)> {
    let called = |name| contenders.iter().any(|c| c.programs.contains(&name));
    PROGRAMS
        .iter()
        .filter(|program| called(program.name))
        .filter_map(|program| Some((program.name.to_owned(), program.version(tools)?)))
        .collect()
}

/// The binaries of this build come first; some tools of administrators are at the end.
fn path(tools: &Path) -> Result<OsString, Failed> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools.to_owned()).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders.chain(["/usr/sbin".into(), "/sbin".into()]))?)
}

/// Ends in order after Ctrl-C or SIGTERM: the flag is looked at wherever something is waited for.
fn watch_for_signals() -> Result<Arc<AtomicBool>, Failed> {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(entered);
    let flag = stop.clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        flag.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

struct Bench<'a> {
    o: &'a Options,
    tools: &'a Path,
    folder: &'a Path,
    contenders: &'a [Contender],
    path: OsString,
    stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// All rounds of one scene.
    fn scene(&self, scene: Scene, results: &mut Results) -> Result<(), Failed> {
        let (mib, rounds) = if self.o.quick { (512, 1) } else { (self.o.mib, self.o.rounds) };
        let parent = match scene.store {
            Store::Disk => self.folder,
            Store::Memory => Path::new("/dev/shm"),
        };
        let bed = {
            let _quiet = self.quiet()?;
            Bed::new(scene, parent, self.tools, mib << 20)?
        };
        let timeout = Duration::from_secs(self.o.timeout);
        let limits = Limits { timeout, stop: self.stop, path: &self.path };
        let count = self.contenders.len();
        for round in self.o.first_round..self.o.first_round + rounds {
            for place in 0..count {
                // Each round starts a third of the way further on.
                let contender = &self.contenders[(place + round * (count / 3 + 1)) % count];
                let quiet = self.quiet()?;
                let measured = run::run(&bed, contender, &limits);
                drop(quiet);
                let outcome = match measured {
                    Ok(figures) => Outcome::Done(figures),
                    Err(_) if self.stop.load(Ordering::Relaxed) => return Err("interrupted".into()),
                    Err(error) => Outcome::Failed(self.public(&error.to_string(), &bed)),
                };
                eprintln!("{scene}, round {round}: {}: {}", contender.name, brief(&outcome, bed.data));
                results.runs.push(Run {
                    scene,
                    image_bytes: bed.size,
                    data_bytes: bed.data,
                    contender: contender.name.clone(),
                    kind: contender.kind,
                    checked: contender.checked.to_owned(),
                    round,
                    outcome,
                });
            }
        }
        Ok(())
    }

    /// A reason as one line, without the paths of this machine.
    fn public(&self, reason: &str, bed: &Bed) -> String {
        let tools = format!("{}/", self.tools.display());
        reason.replace(&format!("{}/", bed.folder), "").replace(&tools, "").replace('\n', " ")
    }

    /// Waits for the lock, if there is one; it goes with the file.
    fn quiet(&self) -> Result<Option<File>, Failed> {
        let Some(path) = &self.o.lock else { return Ok(None) };
        let why = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
        let file = File::options().create(true).append(true).open(path).map_err(why)?;
        // Waits in a thread: whoever only asks again and again comes after all who wait.
        let (tell, locked) = channel();
        std::thread::spawn(move || tell.send(file.lock().map(|()| file)));
        loop {
            match locked.recv_timeout(Duration::from_millis(100)) {
                Ok(file) => return Ok(Some(file.map_err(why)?)),
                Err(_) if self.stop.load(Ordering::Relaxed) => return Err("interrupted".into()),
                Err(_) => {}
            }
        }
    }
}

fn brief(outcome: &Outcome, data: u64) -> String {
    match outcome {
        Outcome::Done(f) => {
            format!("{:.2} s, {:.0} MB/s", f.wall_seconds, data as f64 / 1e6 / f.wall_seconds)
        }
        Outcome::Failed(reason) => format!("FAILED: {reason}"),
    }
}
