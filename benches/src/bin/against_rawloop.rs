//! vmferry against the raw loop over the same shaped link, on the same image, in turns.
//!
//! Every round runs each pair once, raw loop and vmferry one right after the other, so that a
//! machine that slows down slows both. Reported are medians of the rates and of the round-by-round
//! ratios; a single figure of a shared machine means little, the ratio does.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use testbed::images;
use testbed::net::{Rate, Shape};
use vmferry_benches::ferry::{self, Failed, Hosts};
use vmferry_benches::figures::{median, spread};

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
    let rate = |text: &str| -> Result<Option<Rate>, Failed> {
        if text == "none" { Ok(None) } else { Ok(Some(text.parse()?)) }
    };
    let shape = Shape { total: rate(&o.total)?, flow: rate(&o.flow)? };
    let hosts = Hosts::up(shape)?;
    let folder = tempfile::tempdir_in(o.folder.as_deref().unwrap_or(hosts.tools()))?;
    let image = folder.path().join("dense.img");
    images::random(&image, o.mib << 20, 7)?;
    Command::new("sync").arg(&image).status()?;
    let bench = Bench { hosts, image, target: folder.path().join("arrived.img"), more: o.more.clone() };

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
        let (least, most) = spread(ratios);
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
    hosts: Hosts,
    image: PathBuf,
    target: PathBuf,
    more: Vec<String>,
}

impl Bench {
    /// Gb/s of the raw loop.
    fn raw(&self, streams: u32) -> Result<f64, Failed> {
        let size = std::fs::metadata(&self.image)?.len().to_string();
        let streams = streams.to_string();
        let link = self.hosts.link();
        let mut receiver = self.hosts.tool(link.b(), "rawloop");
        receiver.args(["recv", RAW_PORT]).arg(&self.target).args([&streams, "--size", &size, "--allocate"]);
        let mut receiver = receiver.stdout(Stdio::null()).spawn()?;
        self.wait_for_port()?;
        let mut sender = self.hosts.tool(link.a(), "rawloop");
        let address = link.b().address().to_string();
        sender.args(["send", &address, RAW_PORT]).arg(&self.image).arg(&streams);
        let said = ferry::last_object(&mut sender)?;
        receiver.wait()?;
        self.clean()?;
        said["bps"].as_f64().map(|bytes| bytes * 8.0 / 1e9).ok_or_else(|| "no rate".into())
    }

    fn wait_for_port(&self) -> Result<(), Failed> {
        for _ in 0..200 {
            let listening = self
                .hosts
                .link()
                .b()
                .command("ss")
                .args(["-Hltn", &format!("sport = :{RAW_PORT}")])
                .output()?;
            if !listening.stdout.is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the raw loop does not listen".into())
    }

    /// Gb/s of vmferry, and the stage it names.
    fn ours(&self, streams: u32) -> Result<(f64, String), Failed> {
        let mut words = vec!["--streams".into(), streams.to_string()];
        words.extend_from_slice(&self.more);
        let mut send = self.hosts.send(words, std::slice::from_ref(&self.image), &self.target);
        let done = ferry::last_object(&mut send)?;
        let rate = ferry::rate(&done)?;
        images::equal(&self.image, &self.target)?;
        self.clean()?;
        Ok((rate, done["bottleneck"].as_str().unwrap_or("-").to_owned()))
    }

    /// The next run finds a new file and an idle disk.
    fn clean(&self) -> Result<(), Failed> {
        let folder = self.target.parent().ok_or("a file in a folder")?;
        ferry::clean(folder, std::slice::from_ref(&self.target))
    }
}
