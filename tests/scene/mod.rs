//! One image, one destination folder, and what must hold after an attempt that failed: the source
//! is as it was, nothing new lies at the destination, no process is left, nothing hangs.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // every test file uses its part of it

pub mod fake;
pub mod names;
pub mod tap;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use testbed::faults::{FaultFs, Faults};
use testbed::images;
use testbed::net::{Link, LinkConfig, Rate, Shape};

use crate::ferry::{self, Ferry, Sent};

/// Whatever takes longer hangs.
pub const HANG: Duration = Duration::from_secs(60);
/// A receiver that nobody connects to gives up after 30 s.
pub const LONELY: Duration = Duration::from_secs(45);

/// An image here, a folder there.
pub struct Scene {
    pub here: TempDir,
    own: TempDir,
    pub there: PathBuf,
    pub image: PathBuf,
    peer: PathBuf,
    b3: String,
    listed: Vec<PathBuf>,
}

impl Scene {
    /// A dense image of `size` bytes.
    pub fn new(size: u64) -> Scene {
        Scene::with(|path| images::random(path, size, 1).unwrap())
    }

    /// An image that `make` makes.
    pub fn with(make: impl FnOnce(&Path)) -> Scene {
        let (here, own) = (ferry::folder(), ferry::folder());
        let image = here.path().join("disk.img");
        make(&image);
        // Receivers are told from those of other tests by the name that they are called by.
        let peer = here.path().join("vmferry");
        std::os::unix::fs::symlink(ferry::vmferry(), &peer).unwrap();
        let there = own.path().to_owned();
        Scene { b3: images::b3(&image).unwrap(), here, own, there, image, peer, listed: vec![] }
    }

    /// Another folder there, as it is now.
    pub fn to(mut self, folder: impl Into<PathBuf>) -> Scene {
        self.there = folder.into();
        self.expecting_what_is_there()
    }

    /// What is in the folder there now may be there after a failure.
    pub fn expecting_what_is_there(mut self) -> Scene {
        self.listed = list(&self.there);
        self
    }

    /// The vmferry that the remote shell calls.
    pub fn peer(&self) -> String {
        self.peer.to_str().unwrap().into()
    }

    /// From this host to this host.
    pub fn local(&self) -> Ferry {
        Ferry::local().remote_path(self.peer()).arg(&self.image)
    }

    /// From a to b.
    pub fn over(&self, link: &Link) -> Ferry {
        Ferry::over(link).remote_path(self.peer()).arg(&self.image)
    }

    /// From this host to this host, the image being called by another path.
    pub fn local_as(&self, image: &Path) -> Ferry {
        Ferry::local().remote_path(self.peer()).arg(image)
    }

    /// Runs it to its end, which comes in time.
    pub fn send(&self, ferry: &Ferry) -> Sent {
        self.start(ferry).wait()
    }

    /// Starts it.
    pub fn start(&self, ferry: &Ferry) -> Attempt {
        Attempt::start(ferry.command(&self.there))
    }

    /// What arrived is what was sent, and nothing else is there.
    #[track_caller]
    pub fn arrived(&self) {
        self.no_receiver(HANG);
        let copy = self.there.join("disk.img");
        images::equal(&self.image, &copy).unwrap();
        let new: Vec<_> = list(&self.there).into_iter().filter(|p| !self.listed.contains(p)).collect();
        assert!(new.iter().all(|p| *p == copy), "{new:?}");
    }

    /// A failed attempt left nothing but what the same command goes on with, anywhere.
    #[track_caller]
    pub fn untouched(&self) {
        self.untouched_but_for(HANG);
    }

    /// The same; the receiver has so long to find out that nobody comes.
    #[track_caller]
    pub fn untouched_but_for(&self, patience: Duration) {
        assert_eq!(images::b3(&self.image).unwrap(), self.b3, "the source");
        self.nothing_there(patience);
    }

    /// The destination half of it.
    #[track_caller]
    pub fn nothing_there(&self, patience: Duration) {
        self.no_receiver(patience);
        let mut left = list(&self.there);
        left.retain(|path| self.listed.contains(path) || !is_resumable(path));
        assert_eq!(left, self.listed, "left over at the destination");
    }

    /// The other end has come to its end.
    #[track_caller]
    pub fn no_receiver(&self, patience: Duration) {
        let started = Instant::now();
        while !self.receivers().is_empty() {
            assert!(started.elapsed() < patience, "receivers are left: {:?}", self.receivers());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Processes that the remote shell started for this scene, vmferry only.
    pub fn receivers(&self) -> Vec<u32> {
        let called = [self.peer().as_bytes(), b""].join(&0);
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let number = |name: std::ffi::OsString| name.to_str().and_then(|n| n.parse().ok());
        let found =
            processes.filter(|p| fs::read(p.path().join("cmdline")).unwrap_or_default().starts_with(&called));
        found.filter_map(|p| number(p.file_name())).collect()
    }

    /// Ends receivers that wait for a sender which has given up.
    pub fn dismiss(&self) {
        self.receivers().into_iter().for_each(|pid| signal(pid, "TERM"));
    }

    /// The one receiver, once it is there.
    #[track_caller]
    pub fn receiver(&self) -> u32 {
        match self.receivers()[..] {
            [pid] => pid,
            ref other => panic!("one receiver expected: {other:?}"),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in self.receivers() {
            signal(pid, "KILL");
        }
    }
}

/// A part file with its ledger, or that.
fn is_resumable(path: &Path) -> bool {
    let name = path.to_str().unwrap();
    let image = ["part", "ledger"].iter().find_map(|end| name.strip_suffix(&format!(".vmferry-{end}")));
    let pair = |image| ["part", "ledger"].map(|end| PathBuf::from(format!("{image}.vmferry-{end}")));
    image.is_some_and(|image| pair(image).iter().all(|path| path.exists()))
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.file_name().is_some_and(|n| n != "lost+found"));
    found.sort();
    found
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, name: &str) {
    Command::new("kill").args([format!("-{name}"), pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// A link on which a copy is still going on while the test does something.
pub fn slow_link() -> Link {
    Link::up(LinkConfig { shape: Shape { total: Some(Rate::mbit(40)), flow: None }, ..LinkConfig::default() })
        .unwrap()
}

/// No longer slow.
pub fn hurry(link: &Link) {
    link.shape(0, Shape::default()).unwrap();
}

/// Shows `place/backing` at `place/mount`, with faults.
pub fn fault_fs(place: &Path, faults: Faults) -> FaultFs {
    let (backing, mount) = (place.join("backing"), place.join("mount"));
    [&backing, &mount].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    FaultFs::mount(&backing, &mount, faults).unwrap()
}

/// All that the user is told on the way.
pub fn notices(sent: &Sent) -> Vec<String> {
    let events = sent.events();
    let lists = events.iter().filter_map(|e| e["notices"].as_array());
    lists.flatten().map(|n| n.as_str().unwrap().to_owned()).collect()
}

/// A folder that every user may enter and write, on whatever the system has for temporary files:
/// the build folder may lie where only its owner can go.
pub fn public_folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("vmferry-").tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// A copy of a program that every user can run.
pub fn public_program(folder: &Path, program: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap());
    fs::copy(program, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// Words that run a command as nobody, without any right.
pub const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// A `vmferry send` under way.
pub struct Attempt {
    child: Child,
    lines: Receiver<String>,
    stderr: Receiver<String>,
    stdout: String,
    deadline: Instant,
}

impl Attempt {
    pub fn start(mut command: Command) -> Attempt {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let ((line, lines), (said, stderr)) = (channel(), channel());
        thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| line.send(l))
        });
        thread::spawn(move || {
            let mut all = Vec::new();
            let _ = err.read_to_end(&mut all);
            let _ = said.send(String::from_utf8_lossy(&all).into_owned());
        });
        Attempt { child, lines, stderr, stdout: String::new(), deadline: Instant::now() + HANG }
    }

    /// The sender's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the first event that is wanted.
    #[track_caller]
    pub fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.stdout.push_str(&line);
                    self.stdout.push('\n');
                    let event = serde_json::from_str(&line).unwrap();
                    if wanted(&event) {
                        return event;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("it hangs: {}", self.stdout),
                Err(RecvTimeoutError::Disconnected) => {
                    let said = self.stderr.recv_timeout(HANG).unwrap_or_default();
                    panic!("it ended early: {}\n{said}", self.stdout)
                }
            }
        }
    }

    /// Waits until data have arrived. Needs `--log-interval`.
    #[track_caller]
    pub fn until_copying(&mut self) {
        self.until(|e| e["event"] == "progress" && e["done_bytes"].as_u64() > Some(0));
    }

    /// Waits for its end, which comes in time.
    #[track_caller]
    pub fn wait(mut self) -> Sent {
        let exit = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < self.deadline, "it hangs: {}", self.stdout);
            thread::sleep(Duration::from_millis(5));
        };
        while let Ok(line) = self.lines.recv_timeout(HANG) {
            self.stdout.push_str(&line);
            self.stdout.push('\n');
        }
        let stderr = self.stderr.recv_timeout(HANG).unwrap();
        Sent { exit, stdout: std::mem::take(&mut self.stdout), stderr }
    }

    /// Whether it ended by itself.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Not reaped yet if the test failed before its end, so the number is still its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that a sentence has all these parts.
#[track_caller]
pub fn says(reason: &str, parts: &[&str]) {
    for part in parts {
        assert!(reason.contains(part), "'{part}' is missing in: {reason}");
    }
}
