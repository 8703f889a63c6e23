//! The commands of the binary.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use testbed::images;
use testbed::net::{self, Link, LinkConfig, Rate, Shape};
use testbed::seccomp::{Call, Refusal, deny_io_uring};

use crate::shell::LocalShell;
use crate::soak::Soak;

/// Why a command failed.
pub type Failure = Box<dyn std::error::Error>;

/// Two hosts on one machine: makes, shapes and cuts the link between them.
#[derive(Debug, Parser)]
#[command(version, infer_subcommands = false)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make the hosts NAME-a (10.77.0.1) and NAME-b (10.77.0.2) and leave them up.
    Up {
        #[command(flatten)]
        link: Name,
        #[command(flatten)]
        options: Options,
    },
    /// Remove the hosts.
    Down {
        #[command(flatten)]
        link: Name,
    },
    /// Change the rates while traffic is running; no rate means no limit.
    Shape {
        #[command(flatten)]
        link: Name,
        #[command(flatten)]
        rates: Rates,
    },
    /// Silently lose everything, or one connection only.
    Cut {
        #[command(flatten)]
        link: Name,
        /// Lose one TCP connection or UDP socket pair: its ports on a and on b.
        #[arg(long, num_args = 2, value_names = ["PORT_A", "PORT_B"])]
        ports: Option<Vec<u16>>,
        /// Lose packets of more than this many bytes: an MTU black hole.
        #[arg(long, value_name = "BYTES", conflicts_with = "ports")]
        larger: Option<u16>,
    },
    /// Undo every cut.
    Mend {
        #[command(flatten)]
        link: Name,
    },
    /// Run a command on one of the hosts.
    Exec {
        #[command(flatten)]
        link: Name,
        /// The host.
        host: Letter,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Remove hosts that killed test runs left behind.
    Sweep,
    /// Run a command that may not use io_uring.
    DenyIoUring {
        /// How the system call fails.
        errno: Errno,
        /// Let rings be made, refuse only to register buffers and files.
        #[arg(long)]
        only_register: bool,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Make a reference image; the same numbers give the same content.
    Image {
        /// What is in it.
        kind: Kind,
        /// The file; replaced.
        path: PathBuf,
        /// Its size: bytes, or with K, M, G, T.
        #[arg(value_parser = size)]
        size: u64,
        /// Data in a sparse image.
        #[arg(long, value_parser = size, default_value = "64M")]
        data: u64,
        /// Folder whose files fill a filesystem image.
        #[arg(long, default_value = "/usr")]
        from: PathBuf,
        /// Seed of random content.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// A remote shell that runs the command here: for `--rsh 'testbed local-shell'`.
    LocalShell(LocalShell),
    /// Run jobs at random under random faults, and check what they promised.
    Soak(Soak),
    /// Make a link and keep its relay running until the link is removed.
    #[command(hide = true)]
    Hold {
        #[command(flatten)]
        link: Name,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Args)]
struct Name {
    /// Name of the link.
    #[arg(long, default_value = "vmferry")]
    name: String,
}

#[derive(Debug, Args)]
struct Rates {
    /// Rate of each direction, for example 4950mbit.
    #[arg(long)]
    total: Option<Rate>,
    /// Rate of each connection, for example 3700mbit.
    #[arg(long)]
    flow: Option<Rate>,
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    rates: Rates,
    /// One-way delay in milliseconds; the round trip takes twice as long.
    #[arg(long, value_name = "MS")]
    delay: Option<f64>,
    /// Largest IP packet in bytes.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Dense data that no compressor shrinks.
    Random,
    /// Scattered data in holes.
    Sparse,
    /// An ext4 file system with files, 60 % full.
    Filesystem,
    /// qcow2 with scattered data.
    Qcow2,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Letter {
    A,
    B,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Errno {
    #[value(name = "EPERM")]
    Eperm,
    #[value(name = "ENOSYS")]
    Enosys,
}

impl Rates {
    fn shape(&self) -> Shape {
        Shape { total: self.total, flow: self.flow }
    }
}

impl Options {
    fn config(&self) -> Result<LinkConfig, Failure> {
        let delay =
            self.delay.map(|milliseconds| Duration::try_from_secs_f64(milliseconds / 1000.0)).transpose()?;
        Ok(LinkConfig { shape: self.rates.shape(), delay, mtu: self.mtu })
    }
}

/// Does what the command line says.
pub fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.verb {
        Verb::Up { link, options } => up(&link.name, &options)?,
        Verb::Hold { link, options } => hold(&link.name, &options)?,
        Verb::Down { link } => net::remove(&link.name)?,
        Verb::Shape { link, rates } => {
            let link = Link::attach(&link.name)?;
            (0..link.paths()).try_for_each(|path| link.shape(path, rates.shape()))?;
        }
        Verb::Cut { link, ports, larger } => {
            let link = Link::attach(&link.name)?;
            match (ports.as_deref(), larger) {
                (Some([a, b]), _) => link.cut_flow(*a, *b)?,
                (_, Some(bytes)) => link.lose_larger(bytes)?,
                _ => link.cut()?,
            }
        }
        Verb::Mend { link } => Link::attach(&link.name)?.mend()?,
        Verb::Exec { link, host, command } => {
            let link = Link::attach(&link.name)?;
            let host = match host {
                Letter::A => link.a(),
                Letter::B => link.b(),
            };
            let (program, arguments) = split(&command)?;
            return Err(host.command(program).args(arguments).exec().into());
        }
        Verb::Sweep => net::sweep()?.iter().for_each(|name| println!("{name}")),
        Verb::DenyIoUring { errno, only_register, command } => {
            let call = if only_register { Call::Register } else { Call::Setup };
            let refusal = match errno {
                Errno::Eperm => Refusal::Eperm,
                Errno::Enosys => Refusal::Enosys,
            };
            deny_io_uring(call, refusal)?;
            let (program, arguments) = split(&command)?;
            return Err(Command::new(program).args(arguments).exec().into());
        }
        Verb::Image { kind, path, size, data, from, seed } => match kind {
            Kind::Random => images::random(&path, size, seed)?,
            Kind::Sparse => images::sparse(&path, size, data, seed).map(drop)?,
            Kind::Filesystem => images::filesystem(&path, size, &from)?,
            Kind::Qcow2 => images::qcow2(&path, size, data, seed)?,
        },
        Verb::LocalShell(shell) => return Err(shell.exec()),
        Verb::Soak(soak) => return Ok(ExitCode::from(u8::from(!soak.run()?))),
    }
    Ok(ExitCode::SUCCESS)
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("'{text}' is not a size: write 512M or 2G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is not a size: write 512M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

fn split(command: &[OsString]) -> Result<(&OsString, &[OsString]), Failure> {
    command.split_first().ok_or_else(|| "no command given".into())
}

fn up(name: &str, options: &Options) -> Result<(), Failure> {
    if options.delay.is_none() {
        Link::up_named(name, options.config()?)?.keep();
    } else {
        // A delay needs a process that holds the packets: this program again,
        // left behind. It closes its output when the link is up.
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        if let Some(verb) = arguments.first_mut() {
            *verb = "hold".into();
        }
        // Whoever reads our output shall not wait for that process: it gets
        // pipes of its own.
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut said)?;
        }
        if said.is_empty() {
            let output = child.wait_with_output()?;
            let reason = String::from_utf8_lossy(&output.stderr);
            let reason = reason.trim();
            return Err(reason.strip_prefix("testbed: ").unwrap_or(reason).into());
        }
    }
    println!("{name}-a 10.77.0.1, {name}-b 10.77.0.2");
    Ok(())
}

fn hold(name: &str, options: &Options) -> Result<(), Failure> {
    // Its own session: the terminal's Ctrl-C is not meant for it.
    rustix::process::setsid()?;
    let _link = Link::up_named(name, options.config()?)?;
    println!("up");
    std::io::stdout().flush()?;
    Ok(net::wait_removed(name)?)
}
