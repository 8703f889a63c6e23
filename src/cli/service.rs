//! The words of the receiver service and its keys.

use std::path::{Path, PathBuf};

use clap::Args;
use lanes::identity::Fingerprint;
use proto::geometry::parse_size;

/// Arguments of `receive`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("how").required(true).args(["once", "into"]))]
pub struct Receive {
    /// Receive one job, then end
    #[arg(long, requires = "stdio", conflicts_with_all = ["listen", "into", "metrics"])]
    pub once: bool,
    /// Be told the job's keys on standard input
    #[arg(long, requires = "once")]
    pub stdio: bool,

    /// Serve: everything that senders bring goes below this folder
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// Address, port, or both, to listen on; several are possible [default: the sockets that systemd
    /// hands over, else port 8637 of all addresses]
    #[arg(long, value_name = "ADDR[:PORT]", requires = "into")]
    pub listen: Vec<String>,
    /// Folder of the files key and allow [default: /etc/vmferry as root, else ~/.config/vmferry]
    #[arg(long, value_name = "DIR", requires = "into")]
    pub config: Option<PathBuf>,
    /// Jobs at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: u32,
    /// Jobs at once of one key
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs_per_key: u32,
    /// Data connections at once of one key, all its jobs together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub lanes_per_key: u32,
    /// Memory for the buffers of all jobs
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub memory: u64,
    /// Memory for the buffers of the jobs of one key
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    pub memory_per_key: u64,
    /// A connection that acknowledges nothing for so long is dead, seconds (3 to 3600)
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub peer_timeout: u32,
    /// Keep figures for Prometheus in this file (the node exporter's textfile collector reads it)
    #[arg(long, value_name = "FILE", requires = "into")]
    pub metrics: Option<PathBuf>,
    /// Log one JSON object a line on standard output (docs/service.md)
    #[arg(long, requires = "into")]
    pub json: bool,
}

/// Arguments of `key`.
#[derive(Args, Debug)]
pub struct Key {
    /// Folder of keys [default: /etc/vmferry as root, else ~/.config/vmferry]
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
}

/// Arguments of `allow`.
#[derive(Args, Debug)]
pub struct Allow {
    /// Who: what 'vmferry key' prints for the sending user; what is said of it replaces what was said
    /// before
    #[arg(value_name = "KEY")]
    pub key: Option<Fingerprint>,
    /// Show who may send
    #[arg(long, conflicts_with_all = ["key", "remove"])]
    pub list: bool,
    /// No longer
    #[arg(long, requires = "key", conflicts_with_all = ["name", "into", "max_bytes", "overwrite", "device", "keep_owner"])]
    pub remove: bool,
    /// What logs call it
    #[arg(long, requires = "key", value_name = "NAME")]
    pub name: Option<String>,
    /// Folder that its images stay below, relative to the one that the service writes into [default:
    /// that one]
    #[arg(long, requires = "key", value_name = "FOLDER", value_parser = below)]
    pub into: Option<PathBuf>,
    /// Size that the images of one job may have together
    #[arg(long, requires = "key", value_name = "SIZE", value_parser = parse_size)]
    pub max_bytes: Option<u64>,
    /// It may replace files
    #[arg(long, requires = "key")]
    pub overwrite: bool,
    /// Block device that it may overwrite, named as it will name it; several are possible
    #[arg(long, requires = "key", value_name = "PATH", value_parser = absolute)]
    pub device: Vec<PathBuf>,
    /// Images keep the owner that they have at the source (the service must be root)
    #[arg(long, requires = "key")]
    pub keep_owner: bool,
    /// Folder of keys [default: /etc/vmferry as root, else ~/.config/vmferry]
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
}

/// Arguments of `trust`.
#[derive(Args, Debug)]
pub struct Trust {
    /// Host as in `vmferry://HOST/`, with its port if it has another than 8637
    #[arg(value_name = "HOST[:PORT]")]
    pub host: String,
    /// What 'vmferry key' prints there, for the user that the service runs as
    #[arg(value_name = "KEY")]
    pub key: Fingerprint,
    /// Folder of keys [default: /etc/vmferry as root, else ~/.config/vmferry]
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
}

fn below(text: &str) -> Result<PathBuf, String> {
    receiver::rules::below(Path::new(text))
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    Some(PathBuf::from(text))
        .filter(|p| p.is_absolute())
        .ok_or_else(|| format!("'{text}' is not a whole path"))
}
