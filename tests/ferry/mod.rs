//! Runs the real command between two places on this machine, and reads what it says.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // every test file uses its part of it

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testbed::net::Link;

/// The command under test.
pub fn vmferry() -> &'static str {
    env!("CARGO_BIN_EXE_vmferry")
}

/// The test bed's own command.
pub fn testbed() -> PathBuf {
    testbed::binary().unwrap()
}

/// A folder for images, removed afterwards. Under the build folder, which is on a real disk: a
/// temporary folder may be in memory.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("vmferry-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// One `vmferry send`.
pub struct Ferry {
    args: Vec<OsString>,
    from: Option<String>,
    rsh: String,
    remote_path: String,
    wrap: Vec<OsString>,
}

impl Ferry {
    /// From this host to this host, through a remote shell that only pretends.
    pub fn local() -> Ferry {
        Ferry {
            args: vec!["send".into(), "--json".into()],
            from: None,
            rsh: format!("{} local-shell", testbed().display()),
            remote_path: vmferry().into(),
            wrap: vec![],
        }
    }

    /// From host a to host b of a link.
    pub fn over(link: &Link) -> Ferry {
        let rsh = format!("{} local-shell --netns {}", testbed().display(), link.b().name());
        Ferry { from: Some(link.a().name().into()), rsh, ..Ferry::local() }
    }

    /// Another remote shell.
    pub fn rsh(mut self, command: impl Into<String>) -> Ferry {
        self.rsh = command.into();
        self
    }

    /// Another way to call vmferry on the destination.
    pub fn remote_path(mut self, command: impl Into<String>) -> Ferry {
        self.remote_path = command.into();
        self
    }

    /// Runs the sender below another command (`strace -o FILE`, `prlimit …`).
    pub fn wrap<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Ferry {
        self.wrap = words.into_iter().map(Into::into).collect();
        self
    }

    /// More words: options, images.
    pub fn args<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Ferry {
        self.args.extend(words.into_iter().map(Into::into));
        self
    }

    /// Told to people, not to machines: words instead of objects.
    pub fn for_people(mut self) -> Ferry {
        self.args.retain(|word| word != "--json");
        self
    }

    /// One more word.
    pub fn arg(self, word: impl Into<OsString>) -> Ferry {
        self.args([word.into()])
    }

    /// The whole command, to this destination path.
    pub fn command(&self, to: impl AsRef<Path>) -> Command {
        self.call([there(to.as_ref())])
    }

    /// The whole command the other way round: these images of the other host, to this path.
    pub fn fetching<P: AsRef<Path>>(
        &self,
        images: impl IntoIterator<Item = P>,
        to: impl AsRef<Path>,
    ) -> Command {
        self.call(images.into_iter().map(|image| there(image.as_ref())).chain([to.as_ref().into()]))
    }

    fn call(&self, places: impl IntoIterator<Item = OsString>) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.from {
            words.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        words.extend(self.wrap.iter().cloned());
        words.push(vmferry().into());
        words.extend(self.args.iter().cloned());
        words.extend(places);
        words.extend(["--rsh".into(), self.rsh.clone().into()]);
        words.extend(["--remote-path".into(), self.remote_path.clone().into()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).env("STATE_DIRECTORY", state());
        command
    }

    /// Runs it to its end.
    pub fn send(&self, to: impl AsRef<Path>) -> Sent {
        Sent::of(self.command(to).output().unwrap())
    }
}

/// Where vmferry keeps what it knows of devices: each test has its own, since loop devices have the same
/// names again and again.
pub fn state() -> PathBuf {
    let test = std::thread::current().name().unwrap_or("main").replace("::", "-");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("state-{}-{test}", std::process::id()))
}

/// A path of the other host.
fn there(path: &Path) -> OsString {
    let mut place = OsString::from("there:");
    place.push(path);
    place
}

/// How it ended.
#[derive(Debug)]
pub struct Sent {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Sent {
    pub fn of(output: Output) -> Sent {
        Sent {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The objects on standard output.
    pub fn events(&self) -> Vec<Value> {
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// The last object; the job must have succeeded.
    #[track_caller]
    pub fn done(&self) -> Value {
        assert_eq!(self.exit, 0, "{}\n{}", self.stdout, self.stderr);
        let last = self.events().pop().unwrap();
        assert_eq!(last["event"], "done", "{last}");
        last
    }

    /// The sentence it failed with; the exit code must be `exit`.
    #[track_caller]
    pub fn failed(&self, exit: i32) -> String {
        assert_eq!(self.exit, exit, "{}\n{}", self.stdout, self.stderr);
        let last = self.events().pop().unwrap();
        assert_eq!((&last["event"], &last["exit"]), (&"failed".into(), &exit.into()), "{last}");
        let reason = last["reason"].as_str().unwrap().to_owned();
        assert!(self.stderr.contains(&reason), "people are told the same:\n{}", self.stderr);
        assert!(!reason.contains('\n') && !reason.is_empty(), "one line: {reason:?}");
        reason
    }
}
