//! The words of `verify`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blockio::EngineChoice;
use clap::Args;
use proto::geometry::parse_size;

use super::{Digest, seconds};
use crate::place::{Place, is_remote};
use crate::remote::Call;

/// Arguments of `verify`.
#[derive(Args, Debug)]
#[command(override_usage = "vmferry verify [OPTIONS] <IMAGE> [IMAGE]")]
pub struct Verification {
    /// Two images to compare, or one whose digests to print: a file or block device here (one whose
    /// name has a colon is ./NAME), or HOST:IMAGE. Every host reads its own; none is written
    #[arg(required_unless_present = "stdio", value_name = "IMAGE", num_args = 1..=2)]
    pub images: Vec<PathBuf>,
    /// Where these are.
    #[arg(skip)]
    pub places: Vec<Image>,
    /// Look at what standard input asks for, then end; started by whoever compares
    #[arg(long, hide = true, requires = "stdio", conflicts_with = "images")]
    pub once: bool,
    /// Be told the image on standard input
    #[arg(long, hide = true, requires = "once")]
    pub stdio: bool,

    /// Compare only so many bytes from the start, for example when an image lies on a device that is
    /// larger: a number, or with K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Do not read what a file system calls a hole: faster for sparse images, but a file system that
    /// calls data a hole is not found out
    #[arg(long)]
    pub trust_holes: bool,
    /// Also look at an image that something may be writing (if it changes meanwhile, that fails)
    #[arg(long)]
    pub force: bool,
    /// Digest of a single image to insist on: b3 (as b3sum prints it) costs hashing every zero
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Digest::Tree)]
    pub digest: Digest,

    /// Command that reaches a host, called as COMMAND HOST vmferry verify --once --stdio [default:
    /// ssh]
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND")]
    pub rsh: Option<String>,
    /// How to call vmferry on another host, for example 'sudo -n vmferry' [default: vmferry]
    #[arg(long, value_name = "COMMAND")]
    pub remote_path: Option<String>,
    /// A host that is silent for so long is dead, seconds (3 to 3600)
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub peer_timeout: u32,

    /// How to do disk I/O on all hosts
    #[arg(long, value_name = "auto|uring|sync", default_value_t = EngineChoice::Auto)]
    pub engine: EngineChoice,
    /// Use the page cache instead of O_DIRECT on all hosts
    #[arg(long)]
    pub no_direct: bool,

    /// One JSON object a line on standard output (docs/json.md)
    #[arg(long)]
    pub json: bool,
    /// Report every so many seconds, one line each
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub log_interval: Option<Duration>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Say more: what the remote shell says
    #[arg(short, long)]
    pub verbose: bool,
}

/// Where an image is.
#[derive(Clone, Debug)]
pub enum Image {
    /// On this host.
    Here(PathBuf),
    /// On another.
    There(Box<Call>),
}

impl Verification {
    /// Finds out where the images are.
    pub(super) fn find(&mut self) -> Result<(), String> {
        self.places = self.images.iter().map(|word| self.place(word)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn place(&self, word: &Path) -> Result<Image, String> {
        if !is_remote(word) {
            return Ok(Image::Here(word.to_owned()));
        }
        let name = word.display();
        let to: Place = word.to_str().ok_or_else(|| format!("'{name}' is not valid UTF-8"))?.parse()?;
        if to.service.is_some() {
            return Err(format!("'{name}': a service takes images and shows none: use HOST:IMAGE"));
        }
        if to.path.is_empty() || to.path.ends_with('/') {
            return Err(format!("'{name}' names no image"));
        }
        let (rsh, remote_path) = (self.rsh.clone(), self.remote_path.clone());
        Ok(Image::There(Box::new(Call { to, rsh, remote_path, verbose: self.verbose })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn places(words: &str) -> Result<Vec<Image>, clap::Error> {
        let words = ["vmferry", "verify"].into_iter().chain(words.split(' '));
        match Cli::read(words.map(Into::into))?.command {
            Command::Verify(verification) => Ok(verification.places),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn images_may_be_anywhere() {
        for (words, elsewhere) in [
            ("a", &[None][..]),
            ("a b", &[None, None]),
            ("./h:a u@h:~/b", &[None, Some("~/b")]),
            ("-e x h:a i:b -q", &[Some("a"), Some("b")]),
        ] {
            let found = places(words).unwrap();
            let paths: Vec<_> = found
                .iter()
                .map(|image| match image {
                    Image::Here(_) => None,
                    Image::There(call) => Some(call.to.path.as_str()),
                })
                .collect();
            assert_eq!(paths, elsewhere, "{words}");
        }
        for bad in ["a b c", "a h:", "a h:b/", "vmferry://h/a", "a -o:b", "--stdio", "a --once --stdio"] {
            assert!(places(bad).is_err(), "{bad}");
        }
    }
}
