//! vmferry against the raw loop over the same shaped link, on the same image, in turns.
//!
//! Every round runs each pair once, raw loop and vmferry one right after the other, so that a
//! machine that slows down slows both. Reported are medians of the rates and of the round-by-round
//! ratios; a single figure of a shared machine means little, the ratio does.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use testbed::images;
use testbed::net::{Host, Link, LinkConfig, Rate, Shape};

const RAW_PORT: &str = "7070";

/// vmferry against the raw loop over a shaped link.
#[derive(Parser, Debug)]
struct Options {
    /// Image size in MiB.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// Rounds; every figure is a median over them.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Connections, one row each.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    streams: Vec<u32>,
    /// Rate of the link in all, for example 4950mbit; 'none' leaves it unshaped.
    #[arg(long, default_value = "4950mbit")]
    total: String,
    /// Rate per connection.
    #[arg(long, default_value = "3700mbit")]
    flow: String,
    /// Folder for the images [default: beside this program; /dev/shm takes the disks out of it].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Further words for `vmferry send`.
    #[arg(last = true)]
    more: Vec<String>,
}

type Failed = Box<dyn Error>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("against-rawloop: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(o: &Options) -> Result<(), Failed> {
    let tools = std::env::current_exe()?.parent().ok_or("no folder of binaries")?.to_owned();
    let folder = tempfile::tempdir_in(o.folder.as_deref().unwrap_or(&tools))?;
    let image = folder.path().join("dense.img");
    images::random(&image, o.mib << 20, 7)?;
    Command::new("sync").arg(&image).status()?;
    let rate = |text: &str| -> Result<Option<Rate>, Failed> {
        if text == "none" { Ok(None) } else { Ok(Some(text.parse()?)) }
    };
    let shape = Shape { total: rate(&o.total)?, flow: rate(&o.flow)? };
    let link = Link::up(LinkConfig { shape, ..LinkConfig::default() })?;
    let bench = Bench { tools, link, image, target: folder.path().join("arrived.img"), more: o.more.clone() };

    let mut rows: Vec<Vec<Round>> = o.streams.iter().map(|_| Vec::new()).collect();
    for round in 0..o.rounds {
        for (row, streams) in rows.iter_mut().zip(&o.streams) {
            // Whoever goes second may find the disk busier: take turns.
            let mut both = Round::default();
            for first in [round % 2 == 0, round % 2 == 1] {
                if first {
                    both.raw = bench.raw(*streams)?;
                } else {
                    (both.ours, both.slowest) = bench.ours(*streams)?;
                }
            }
            eprintln!(
                "round {round}, {streams} connections: raw {:.3}, vmferry {:.3} Gb/s ({})",
                both.raw, both.ours, both.slowest
            );
            row.push(both);
        }
    }
    println!(
        "| connections | raw loop Gb/s | vmferry (tls, verified) Gb/s | ratio | ratios min-max | slowest stage |"
    );
    println!("|---|---|---|---|---|---|");
    let mut report = Vec::new();
    for (row, streams) in rows.iter().zip(&o.streams) {
        let raw = median(row.iter().map(|r| r.raw));
        let ours = median(row.iter().map(|r| r.ours));
        let ratios: Vec<f64> = row.iter().map(|r| r.ours / r.raw).collect();
        let ratio = median(ratios.iter().copied());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let slowest = row.last().map_or("", |r| r.slowest.as_str());
        println!("| {streams} | {raw:.3} | {ours:.3} | {ratio:.3} | {least:.3}-{most:.3} | {slowest} |");
        report.push(json!({"connections": streams, "raw_gbps": raw, "vmferry_gbps": ours, "ratio": ratio}));
    }
    if let (Some(one), Some(four)) = (rows.first(), rows.last())
        && rows.len() > 1
    {
        let gain = median(four.iter().map(|r| r.ours)) / median(one.iter().map(|r| r.ours));
        println!("\n{} : {} connections = {gain:.3}", o.streams[rows.len() - 1], o.streams[0]);
    }
    println!("{}", json!({"mib": o.mib, "rounds": o.rounds, "rows": report}));
    Ok(())
}

#[derive(Default)]
struct Round {
    raw: f64,
    ours: f64,
    slowest: String,
}

struct Bench {
    tools: PathBuf,
    link: Link,
    image: PathBuf,
    target: PathBuf,
    more: Vec<String>,
}

impl Bench {
    fn tool(&self, host: &Host, name: &str) -> Command {
        host.command(self.tools.join(name))
    }

    /// Gb/s of the raw loop.
    fn raw(&self, streams: u32) -> Result<f64, Failed> {
        let size = std::fs::metadata(&self.image)?.len().to_string();
        let streams = streams.to_string();
        let mut receiver = self.tool(self.link.b(), "rawloop");
        receiver.args(["recv", RAW_PORT]).arg(&self.target).args([&streams, "--size", &size, "--allocate"]);
        let mut receiver = receiver.stdout(Stdio::null()).spawn()?;
        self.wait_for_port()?;
        let mut sender = self.tool(self.link.a(), "rawloop");
        let address = self.link.b().address().to_string();
        sender.args(["send", &address, RAW_PORT]).arg(&self.image).arg(&streams);
        let said = output(&mut sender)?;
        receiver.wait()?;
        self.clean()?;
        said["bps"].as_f64().map(|bytes| bytes * 8.0 / 1e9).ok_or_else(|| "no rate".into())
    }

    fn wait_for_port(&self) -> Result<(), Failed> {
        for _ in 0..200 {
            let listening =
                self.link.b().command("ss").args(["-Hltn", &format!("sport = :{RAW_PORT}")]).output()?;
            if !listening.stdout.is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the raw loop does not listen".into())
    }

    /// Gb/s of vmferry, and the stage it names.
    fn ours(&self, streams: u32) -> Result<(f64, String), Failed> {
        let mut place = std::ffi::OsString::from("there:");
        place.push(&self.target);
        let rsh =
            format!("{} local-shell --netns {}", self.tools.join("testbed").display(), self.link.b().name());
        let mut send = self.tool(self.link.a(), "vmferry");
        send.args(["send", "--json", "--streams", &streams.to_string(), "--rsh", &rsh]);
        send.arg("--remote-path")
            .arg(self.tools.join("vmferry"))
            .args(&self.more)
            .arg(&self.image)
            .arg(place);
        let done = output(&mut send)?;
        images::equal(&self.image, &self.target)?;
        self.clean()?;
        let rate = done["rate_bps"].as_f64().ok_or("no rate")? / 1e9;
        Ok((rate, done["bottleneck"].as_str().unwrap_or("-").to_owned()))
    }

    /// The next run finds a new file and an idle disk.
    fn clean(&self) -> Result<(), Failed> {
        std::fs::remove_file(&self.target)?;
        Command::new("sync").arg("-f").arg(self.target.parent().unwrap_or(Path::new("."))).status()?;
        Ok(())
    }
}

/// The last line of what a command prints, as JSON.
fn output(command: &mut Command) -> Result<Value, Failed> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().ok_or_else(|| format!("{command:?} said nothing"))?;
    Ok(serde_json::from_str(last)?)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => (sorted[n / 2] + sorted[(n - 1) / 2]) / 2.0,
    }
}
