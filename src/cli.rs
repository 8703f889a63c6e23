//! The command line. Words are parsed here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

use blockio::EngineChoice;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use proto::control::Delta;
use proto::errand::Family;
use proto::geometry::{ChunkSize, parse_size};
use proto::owner::Owner;

mod service;
mod unfinished;
mod verify;

pub use service::{Allow, Key, Receive, Trust};
pub use unfinished::{Discard, Status};
pub use verify::{Image, Verification};

use crate::place::{Place, is_remote};
use crate::remote::Call;

/// Moves VM images between hosts: parallel verified connections, direct I/O on both ends.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Send images to another host, or fetch them from there (starts the other end through ssh)
    Send(Box<Send>),
    /// Receive: as a service that senders reach as vmferry://HOST/PATH; or one job, started by the
    /// sender through the remote shell
    Receive(Box<Receive>),
    /// Compare two images on two hosts without moving them; of one image: its digests
    Verify(Box<Verification>),
    /// List what interrupted jobs left in a folder of this host, where the copies grow
    Status(Status),
    /// Remove what an interrupted job left of a copy on this host
    Drop(Discard),
    /// Show this user's public key, for others to allow or to trust; the first time, make the pair
    Key(Key),
    /// Say who may send to this host's service, and what; alone: show it
    Allow(Allow),
    /// Say which key a service is known by
    Trust(Trust),
}

impl Cli {
    /// Takes the words of a command line apart.
    ///
    /// # Errors
    /// What to print, and the exit code.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let mut cli = Cli::try_parse_from(words)?;
        if let Command::Verify(verification) = &mut cli.command {
            let command = || Verification::augment_args(clap::Command::new("vmferry verify"));
            verification.find().map_err(|reason| command().error(ErrorKind::ValueValidation, reason))?;
        }
        if let Command::Send(send) = &mut cli.command {
            let command = || Send::augment_args(clap::Command::new("vmferry send"));
            send.split().map_err(|reason| command().error(ErrorKind::ValueValidation, reason))?;
        }
        Ok(cli)
    }
}

/// Arguments of `send`.
#[derive(Args, Debug)]
#[command(
    override_usage = "vmferry send [OPTIONS] <IMAGE>... <HOST:PATH>\n       vmferry send [OPTIONS] <HOST:IMAGE>... <PATH>\n       vmferry send [OPTIONS] <IMAGE>... vmferry://HOST[:PORT]/PATH"
)]
pub struct Send {
    /// Images (raw or qcow2 files, block devices; copied byte for byte), then where to: HOST:FILE,
    /// HOST:FOLDER (several images need a folder), or HOST:DEVICE; vmferry://HOST/PATH: to a receiver
    /// service, below the folder that it gives. Or the other way round: images of one other host, then
    /// a path on this one. A file whose name has a colon is ./NAME
    // One list for both: clap cannot tell the last positional from the ones before it when an
    // option stands in between.
    #[arg(required_unless_present = "stdio", value_name = "IMAGE... HOST:PATH")]
    pub images: Vec<PathBuf>,
    /// The other host, and the last of these words without it: the destination's path, which in a
    /// pull is on this host.
    #[arg(skip)]
    pub to: Place,
    /// The images are on the other host.
    #[arg(skip)]
    pub pull: bool,
    /// Send what standard input asks for, then end; started by the receiver of a pull
    #[arg(long, hide = true, requires = "stdio", conflicts_with = "images")]
    pub once: bool,
    /// Be told the errand on standard input
    #[arg(long, hide = true, requires = "once")]
    pub stdio: bool,

    /// Parallel data connections (1 to 256)
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub streams: u32,
    /// How the data connections are protected
    #[arg(long, value_enum, default_value_t = Transport::Tls)]
    pub transport: Transport,
    /// Send no faster than this, all connections together: 800Mb/s, 2.5Gb/s, 100MiB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub limit: Option<u64>,
    /// Address or name of the destination (in a pull: of this host) for all connections (instead of
    /// the one found through ssh), for example that of another cable; several times: data connections
    /// take them in turn
    #[arg(long, value_name = "ADDR")]
    pub via: Vec<String>,
    /// Use IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Use IPv6 only
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// TCP port, or range of ports, that the receiver listens on
    #[arg(long, value_name = "N[-M]", value_parser = port_range)]
    pub port: Option<(u16, u16)>,
    /// Command that reaches the host, called as COMMAND HOST vmferry receive --once --stdio (or
    /// send --once --stdio) [default: ssh]
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND")]
    pub rsh: Option<String>,
    /// How to call vmferry on the other host, for example 'sudo -n vmferry' [default: vmferry]
    #[arg(long, value_name = "COMMAND")]
    pub remote_path: Option<String>,

    /// Folder of the files key and hosts, for services [default: /etc/vmferry as root, else
    /// ~/.config/vmferry]
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,

    /// Replace existing destination files, overwrite a device; also send an image that something may
    /// be writing
    #[arg(long)]
    pub force: bool,
    /// The destination has an older copy: compare on both ends, and send only what differs. The older
    /// copy stays as it is until the new one, a clone or a copy of it, is complete
    #[arg(long)]
    pub delta: bool,
    /// With --delta: change the older copy itself, which needs no room. Until that is complete it has
    /// another name, NAME.vmferry-part
    #[arg(long, requires = "delta")]
    pub inplace: bool,
    /// The copies belong to this user and group of the destination, instead of the source's
    #[arg(long, value_name = "[USER][:GROUP]")]
    pub chown: Option<Owner>,
    /// auto refuses a qcow2 that is only a part of an image (overlay, external data file); raw never
    /// looks inside. Either way the file is copied byte for byte
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub format: Format,
    /// Check everything on both hosts, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Whole-image digest to insist on: b3 (as b3sum prints it) costs hashing every hole
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Digest::Tree)]
    pub digest: Digest,

    /// How far the copy is verified: written checks every block before it is written; readback also
    /// reads all of it from the destination's disk again
    #[arg(long, value_enum, default_value_t = Verify::Written)]
    pub verify: Verify,

    /// Unit of work: a power of two from 64K to 4M
    #[arg(long, value_name = "SIZE", default_value_t = ChunkSize::DEFAULT)]
    pub chunk: ChunkSize,
    /// Memory for buffers on each end, with K, M, G or T [default: what the streams need]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// How to do disk I/O on both ends
    #[arg(long, value_name = "auto|uring|sync", default_value_t = EngineChoice::Auto)]
    pub engine: EngineChoice,
    /// Read all of the images: take nobody's word for where their holes are. Zeros are still not sent
    #[arg(long)]
    pub no_holes: bool,
    /// Use the page cache instead of O_DIRECT on both ends
    #[arg(long)]
    pub no_direct: bool,
    /// Data that a power cut at the destination may cost, that is between two flushes [default:
    /// 256M, or more where flushing would take over 2 % of the time]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub sync_window: Option<u64>,
    /// Let the guests come first: both ends get nice value 10 and the idle I/O class (a receiver
    /// service keeps its own)
    #[arg(long)]
    pub nice: bool,
    /// A connection that is silent for so long is dead, and made again, seconds (3 to 3600)
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub peer_timeout: u32,
    /// A network that is gone may come back for so long, seconds (0 to 86400); then both ends give up
    #[arg(long, value_name = "SECS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub patience: u32,

    /// One JSON object a line on standard output (docs/json.md)
    #[arg(long)]
    pub json: bool,
    /// Report every so many seconds, one line each
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub log_interval: Option<std::time::Duration>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Say more: what the remote shell says, notices in full
    #[arg(short, long)]
    pub verbose: bool,
}

impl Send {
    /// Takes the destination off the list of images, and finds out who sends to whom.
    fn split(&mut self) -> Result<(), String> {
        if self.stdio {
            return Ok(());
        }
        let last = self.images.pop().unwrap_or_default();
        if self.images.is_empty() {
            return Err(format!("'{}' is alone: give images, then HOST:PATH", last.display()));
        }
        let place = last.to_str().ok_or_else(|| format!("'{}' is not valid UTF-8", last.display()))?;
        let Some(remote) = self.images.iter().find(|image| is_remote(image)) else {
            self.to = place.parse()?;
            return if self.to.service.is_some() { self.check_for_service() } else { Ok(()) };
        };
        let remote = remote.display();
        if is_remote(&last) {
            return Err(format!(
                "'{remote}' and '{place}' are both on other hosts: run this on one of the two (a file here whose name has a colon is ./NAME)"
            ));
        }
        if let Some(local) = self.images.iter().find(|image| !is_remote(image)) {
            return Err(format!(
                "'{}' is on this host and '{remote}' is not: a job has one source host (a file here whose name has a colon is ./NAME)",
                local.display()
            ));
        }
        if place.is_empty() || place.contains('\0') || place.len() > PATH_MAX {
            return Err(format!("'{place}' cannot be a destination"));
        }
        let mut host: Option<String> = None;
        for image in &mut self.images {
            let name = image.to_str().ok_or_else(|| format!("'{}' is not valid UTF-8", image.display()))?;
            let from: Place = name.parse()?;
            if from.service.is_some() {
                return Err(format!(
                    "'{}': a service takes images and gives none: use HOST:IMAGE",
                    image.display()
                ));
            }
            if from.path.is_empty() || from.path.ends_with('/') {
                return Err(format!("'{}' names no image", image.display()));
            }
            if let Some(first) = host.as_ref().filter(|first| **first != from.host) {
                return Err(format!(
                    "images of one job come from one host, not from {first} and {}",
                    from.host
                ));
            }
            host = Some(from.host);
            *image = from.path.into();
        }
        self.to = Place { host: host.unwrap_or_default(), path: place.into(), service: None };
        self.pull = true;
        Ok(())
    }

    /// Options that would do nothing.
    fn check_for_service(&self) -> Result<(), String> {
        if self.port.is_some() {
            return Err("--port: a service has its port in its name, vmferry://HOST:PORT/PATH".into());
        }
        let shell = [("--rsh", &self.rsh), ("--remote-path", &self.remote_path)];
        match shell.iter().find(|(_, given)| given.is_some()) {
            Some((option, _)) => Err(format!("{option}: a service is reached without a shell: leave it out")),
            None => Ok(()),
        }
    }

    /// What becomes of older copies.
    pub fn delta(&self) -> Delta {
        match (self.delta, self.inplace) {
            (false, _) => Delta::No,
            (true, false) => Delta::Aside,
            (true, true) => Delta::InPlace,
        }
    }

    /// How the other host is asked.
    pub fn call(&self) -> Call {
        let (rsh, remote_path) = (self.rsh.clone(), self.remote_path.clone());
        Call { to: self.to.clone(), rsh, remote_path, verbose: self.verbose }
    }

    /// Address families that `-4` and `-6` leave.
    pub fn family(&self) -> Family {
        match (self.ipv4, self.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        }
    }
}

/// Longest path on another host, bytes.
const PATH_MAX: usize = 4000;

/// Transports.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TLS 1.3 over TCP, keys pinned on both sides
    Tls,
    /// TCP, every frame authenticated, but readable on the way: for a trusted cable
    Tcp,
}

impl From<Transport> for proto::control::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tls => Self::Tls,
            Transport::Tcp => Self::Tcp,
        }
    }
}

/// What the images are.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Whatever their headers say
    Auto,
    /// Plain bytes, whatever they look like
    Raw,
}

/// How far a copy is verified.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// What is written fits the source, and the disk said that it has it
    Written,
    /// The disk gives it back, too
    Readback,
}

/// Whole-image digests.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digest {
    /// Grows with the data; b3 too when an image has at most 64 GiB of zeros
    Tree,
    /// What b3sum prints, whatever it takes
    B3,
}

/// Bits per second.
fn rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a rate: write 800Mb/s, 2.5Gb/s, 100MB/s or 100MiB/s");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let scale = match text[digits.len()..].trim_start() {
        "kb/s" | "kbit" | "kbit/s" => 1e3,
        "Mb/s" | "Mbit" | "Mbit/s" | "mbit" => 1e6,
        "Gb/s" | "Gbit" | "Gbit/s" | "gbit" => 1e9,
        "kB/s" => 8e3,
        "MB/s" => 8e6,
        "GB/s" => 8e9,
        "KiB/s" => 8.0 * 1024.0,
        "MiB/s" => 8.0 * 1_048_576.0,
        "GiB/s" => 8.0 * 1_073_741_824.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    // From modem speed to more than any cable has.
    match number * scale {
        bits if (8e3..=1e13).contains(&bits) => Ok(bits as u64),
        _ => Err(wrong()),
    }
}

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=86_400.0).contains(&s) => Ok(std::time::Duration::from_secs_f64(s)),
        _ => Err(format!("'{text}' is not a time: give seconds from 0.1 to 86400")),
    }
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("'{text}' is not a port or a range of ports: write 7000 or 7000-7099");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first == 0 || first > last { Err(wrong()) } else { Ok((first, last)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_are_checked_where_they_are_typed() {
        for (text, bits) in
            [("800Mb/s", 800_000_000), ("2.5Gb/s", 2_500_000_000), ("1MB/s", 8_000_000), ("1 MiB/s", 8 << 20)]
        {
            assert_eq!(rate(text), Ok(bits));
        }
        for bad in ["", "0Mb/s", "100", "-1Mb/s", "5M", "1e9Gb/s", "NaNMb/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(port_range("7000-7010"), Ok((7000, 7010)));
        for bad in ["0", "70000", "9-8", "a", "1-"] {
            assert!(port_range(bad).is_err(), "{bad}");
        }
        for bad in [
            vec!["send"],
            vec!["send", "a", "nocolon"],
            vec!["send", "h:x"],
            vec!["send", "a", "h:x", "--streams", "0"],
            vec!["send", "h:a", "h:x"],
            vec!["send", "h:a", "b", "x"],
            vec!["send", "h:a", "i:b", "x"],
            vec!["send", "u@h:a", "h:b", "x"],
            vec!["send", "h:", "x"],
            vec!["send", "h:a/", "x"],
            vec!["send", "h:a", ""],
            vec!["send", "-oProxyCommand=sh:a", "x"],
            vec!["send", "vmferry://h/a", "x"],
            vec!["send", "--once"],
            vec!["send", "--stdio"],
            vec!["send", "a", "h:x", "--once", "--stdio"],
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }

    fn read(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::read(["vmferry"].iter().chain(words).map(OsString::from))
    }

    #[test]
    fn who_sends_to_whom() {
        for (words, pull, images, to) in [
            ("a h:x", false, "a", "h:x"),
            ("./a:b c h:x", false, "./a:b c", "h:x"),
            ("h:a x", true, "a", "h:x"),
            ("u@h:~/a u@h:/b:c ./d:e", true, "~/a /b:c", "u@h:./d:e"),
        ] {
            let words: Vec<_> = ["send"].into_iter().chain(words.split(' ')).collect();
            let Command::Send(send) = read(&words).unwrap().command else { panic!("{words:?}") };
            let found = send.images.iter().map(|p| p.to_str().unwrap()).collect::<Vec<_>>().join(" ");
            assert_eq!(
                (send.pull, found.as_str(), send.to),
                (pull, images, to.parse().unwrap()),
                "{words:?}"
            );
        }
        let Command::Send(send) = read(&["send", "--once", "--stdio"]).unwrap().command else { panic!() };
        assert!(send.stdio && !send.pull);
    }

    #[test]
    fn options_may_stand_anywhere() {
        for words in ["-q a b h:x", "a b h:x -q", "a -q b h:x", "a b -q h:x", "a --streams 4 b -q h:x"] {
            let words: Vec<_> = ["send"].into_iter().chain(words.split(' ')).collect();
            let Command::Send(send) = read(&words).unwrap().command else { panic!("{words:?}") };
            assert_eq!((send.images.len(), send.to.host.as_str(), send.quiet), (2, "h", true), "{words:?}");
        }
    }
}
