//! Two images compared where they lie.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod devices;
mod differences;
mod digests;
mod endings;
mod holes;
mod liars;
mod refusals;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferry::{Sent, testbed, vmferry};
use scene::Attempt;
use serde_json::Value;
use tempfile::TempDir;
use testbed::images;

const MIB: u64 = 1 << 20;

/// Two images side by side, and a name of their own for vmferry on the other host.
struct Pair {
    folder: TempDir,
    a: PathBuf,
    b: PathBuf,
}

impl Pair {
    /// Two sparse images that are equal.
    fn equal(size: u64) -> Pair {
        Pair::with(|path| drop(images::sparse(path, size, size / 3, 1).unwrap()))
    }

    fn with(make: impl FnOnce(&Path)) -> Pair {
        let folder = ferry::folder();
        let [a, b] = ["a.img", "b.img"].map(|name| folder.path().join(name));
        make(&a);
        // Holes and all: how the copy is allocated does not matter.
        assert!(Command::new("cp").arg(&a).arg(&b).status().unwrap().success());
        std::os::unix::fs::symlink(vmferry(), folder.path().join("vmferry")).unwrap();
        Pair { folder, a, b }
    }

    /// Writes into the second image.
    fn spoil(&self, at: u64, bytes: &[u8]) {
        File::options().write(true).open(&self.b).unwrap().write_all_at(bytes, at).unwrap();
    }

    fn peer(&self) -> String {
        self.folder.path().join("vmferry").to_str().unwrap().into()
    }

    /// `vmferry verify` of these images, with a remote shell that only pretends.
    fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(vmferry());
        command.arg("verify").args(words).args(["--rsh", &format!("{} local-shell", testbed().display())]);
        command.args(["--remote-path", &self.peer()]).stdin(Stdio::null());
        command
    }

    fn start(&self, options: &[&str], images: &[OsString]) -> Attempt {
        let mut words: Vec<OsString> = ["--json"].iter().chain(options).map(OsString::from).collect();
        words.extend(images.iter().cloned());
        Attempt::start(self.command(&words))
    }

    /// The first image here, the second there.
    fn apart(&self) -> [OsString; 2] {
        [self.a.clone().into(), there(&self.b)]
    }

    /// Both here.
    fn here(&self) -> [OsString; 2] {
        [self.a.clone().into(), self.b.clone().into()]
    }

    fn verify(&self, options: &[&str]) -> Sent {
        self.start(options, &self.apart()).wait()
    }

    /// Processes that the remote shell started.
    fn peers(&self) -> Vec<u32> {
        let called = [self.peer().as_bytes(), b""].join(&0);
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let ours =
            |p: &fs::DirEntry| fs::read(p.path().join("cmdline")).unwrap_or_default().starts_with(&called);
        processes.filter(ours).filter_map(|p| p.file_name().to_str()?.parse().ok()).collect()
    }

    /// Nothing is left running.
    #[track_caller]
    fn nobody_is_left(&self) {
        let started = std::time::Instant::now();
        while !self.peers().is_empty() {
            assert!(started.elapsed() < scene::HANG, "left: {:?}", self.peers());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A path of the other host.
fn there(path: &Path) -> OsString {
    let mut place = OsString::from("there:");
    place.push(path);
    place
}

/// The object that tells how the comparison ended.
#[track_caller]
fn compared(sent: &Sent) -> Value {
    let events = sent.events();
    let found = events.iter().find(|e| e["event"] == "compared");
    found.unwrap_or_else(|| panic!("{}\n{}", sent.stdout, sent.stderr)).clone()
}

/// The ranges that were named.
fn ranges(sent: &Sent) -> Vec<(u64, u64)> {
    let events = sent.events();
    let differences = events.iter().filter(|e| e["event"] == "difference");
    differences.map(|e| (e["start"].as_u64().unwrap(), e["end"].as_u64().unwrap())).collect()
}
