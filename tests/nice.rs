//! `--nice`: every thread of both ends lets others come first.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::fs;
use std::process::Command;

use ferry::Ferry;
use scene::{Attempt, Scene};

const MIB: u64 = 1 << 20;
/// So that there is time to look.
const SLOW: [&str; 4] = ["--limit", "64Mb/s", "--log-interval", "0.1"];
/// The pretended remote shell hands down the sender's priority, which a real one would not: words
/// that go back to the usual one. Needs root.
const AS_USUAL: &str = "nice -n -10 ionice -c 2 -n 4";

/// A thread: its name, its nice value, and what ionice(1) says of it.
type Thread = (String, i32, String);

/// The threads of a process; those that end meanwhile are left out.
fn threads(pid: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.filter_map(|task| thread(&task.file_name().into_string().unwrap())).collect()
}

fn thread(id: &str) -> Option<Thread> {
    let io = Command::new("ionice").args(["-p", id]).output().unwrap();
    // "ID (NAME) STATE …"; the nice value is field 19 of proc_pid_stat(5).
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (head, rest) = stat.rsplit_once(')')?;
    let nice = rest.split_whitespace().nth(16)?.parse().ok()?;
    Some((head.split_once('(')?.1.to_owned(), nice, String::from_utf8(io.stdout).ok()?.trim().to_owned()))
}

/// The nice value that this test has, and so whatever it starts.
fn ours() -> i32 {
    thread(&std::process::id().to_string()).unwrap().1
}

/// All threads of both ends are as `is_right` wants them, those of the disk among them.
#[track_caller]
fn both_ends(attempt: &Attempt, scene: &Scene, is_right: impl Fn(&Thread) -> bool) {
    for pid in [attempt.pid(), scene.receiver()] {
        let threads = threads(pid);
        assert!(threads.iter().any(|(name, ..)| name.starts_with("vmferry-")), "{threads:?}");
        assert!(threads.iter().any(|(name, ..)| name.starts_with("tokio")), "{threads:?}");
        assert!(threads.iter().all(&is_right), "{threads:?}");
    }
}

fn is_lowered((_, nice, io): &Thread) -> bool {
    *nice == 10.max(ours()) && io == "idle"
}

fn push(scene: &Scene, words: &[&str]) -> Attempt {
    let far = format!("{AS_USUAL} {}", scene.peer());
    let mut attempt = scene.start(&scene.local().remote_path(far).args(SLOW).args(words));
    attempt.until_copying();
    attempt
}

#[test]
fn both_ends_of_a_push() {
    for engine in ["uring", "sync"] {
        let scene = Scene::new(16 * MIB);
        let attempt = push(&scene, &["--nice", "--engine", engine]);
        both_ends(&attempt, &scene, is_lowered);
        attempt.wait().done();
        scene.arrived();
    }
}

#[test]
fn both_ends_of_a_pull() {
    let scene = Scene::new(16 * MIB);
    let ferry = Ferry::local().remote_path(format!("{AS_USUAL} {}", scene.peer()));
    let fetching = ferry.arg("--nice").args(SLOW).fetching([&scene.image], &scene.there);
    let mut attempt = Attempt::start(fetching);
    attempt.until_copying();
    both_ends(&attempt, &scene, is_lowered);
    attempt.wait().done();
    scene.arrived();
}

/// Who is nicer already stays so.
#[test]
fn nothing_is_raised() {
    let scene = Scene::new(16 * MIB);
    let ferry = scene.local().wrap(["nice", "-n", "15"]).args(SLOW).arg("--nice");
    let mut attempt = scene.start(&ferry);
    attempt.until_copying();
    both_ends(&attempt, &scene, |(_, nice, io)| *nice == 19.min(ours() + 15) && io == "idle");
    attempt.wait().done();
}

#[test]
fn without_it_both_ends_are_as_they_were_started() {
    let scene = Scene::new(16 * MIB);
    let mut attempt = scene.start(&scene.local().args(SLOW));
    attempt.until_copying();
    both_ends(&attempt, &scene, |(_, nice, io)| *nice == ours() && io != "idle");
    attempt.wait().done();
}
