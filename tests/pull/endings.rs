//! One end, the shell, or the way between them, ends in the middle of a copy.

use std::fs;
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::net::Link;

use super::{MIB, over, start};
use crate::ferry::{folder, testbed};
use crate::scene::{Attempt, HANG, Scene, hurry, says, signal, slow_link};

/// What imitates ssh: a process of its own between the two ends.
const RELAY: &str = r#"
import os, subprocess, sys, threading
far = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def copy(source, sink):
    while piece := os.read(source, 65536):
        os.write(sink, piece)
    os.close(sink)
threading.Thread(target=copy, args=(0, far.stdin.fileno()), daemon=True).start()
copy(far.stdout.fileno(), 1)
sys.exit(far.wait())
"#;

/// A copy in its middle, from host b to host a.
fn copying() -> (Link, Scene, Attempt) {
    copying_with("4")
}

/// The same, with this patience in seconds.
fn copying_with(patience: &str) -> (Link, Scene, Attempt) {
    let (link, scene) = (slow_link(), Scene::new(48 * MIB));
    let relay = scene.here.path().join("relay.py");
    fs::write(&relay, RELAY).unwrap();
    let far = format!("{} local-shell --netns {}", testbed().display(), link.b().name());
    let ferry = over(&scene, &link).rsh(format!("python3 {} {far}", relay.display()));
    let ferry = ferry.args(["--log-interval", "0.1", "--peer-timeout", "3", "--streams", "8"]);
    let mut attempt = start(&scene, &ferry.args(["--patience", patience]));
    attempt.until_copying();
    assert!(scene.there.join("disk.img.vmferry-part").exists(), "the test is too late");
    (link, scene, attempt)
}

#[test]
fn a_device_here_that_was_overwritten_is_named() {
    let place = folder();
    let disk = LoopDisk::new(place.path(), 48 * MIB, Fs::None, 512).unwrap();
    let (link, scene) = (slow_link(), Scene::new(48 * MIB));
    let ferry = over(&scene, &link).args(["--log-interval", "0.1", "--force"]);
    let mut attempt = Attempt::start(ferry.fetching([&scene.image], disk.device()));
    attempt.until_copying();
    attempt.signal("INT");
    let reason = attempt.wait().failed(6);
    let device = disk.device().display();
    assert_eq!(
        reason,
        format!("interrupted; {device} holds an incomplete copy now: run the same command again")
    );
    scene.untouched();
}

/// The remote shell's process here.
fn shell_of(attempt: &Attempt) -> u32 {
    let pid = attempt.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

fn interrupted_here(name: &str) {
    let (_link, scene, attempt) = copying();
    attempt.signal(name);
    let reason = attempt.wait().failed(6);
    says(&reason, &["interrupted", "is not sent twice", "run the same command again"]);
    scene.untouched();
}

#[test]
fn an_interrupt_here_ends_both_ends() {
    interrupted_here("INT");
}

#[test]
fn a_termination_here_ends_both_ends() {
    interrupted_here("TERM");
}

/// A terminal sends Ctrl-C to the shell as well, which may end first.
#[test]
fn an_interrupt_that_ends_the_shell_as_well_is_still_an_interrupt() {
    let (_link, scene, attempt) = copying();
    signal(shell_of(&attempt), "KILL");
    attempt.signal("INT");
    attempt.wait().failed(6);
    scene.untouched();
}

#[test]
fn a_termination_there_ends_both_ends() {
    let (_link, scene, attempt) = copying();
    signal(scene.receiver(), "TERM");
    let reason = attempt.wait().failed(6);
    says(&reason, &["there: the sender was told to end", "run the same command again"]);
    scene.untouched();
}

#[test]
fn a_killed_sender_is_said_to_be_gone() {
    let (_link, scene, attempt) = copying();
    signal(scene.receiver(), "KILL");
    let reason = attempt.wait().failed(1);
    says(&reason, &["there", "run the same command again"]);
    scene.untouched();
}

#[test]
fn a_killed_receiver_is_noticed_there() {
    let (link, scene, attempt) = copying();
    attempt.signal("KILL");
    assert_eq!(attempt.wait().exit, -1);
    let scene = scene.expecting_what_is_there();
    scene.untouched();
    // Its part file stays; the next attempt says so and starts over.
    hurry(&link);
    let mut again = start(&scene, &over(&scene, &link));
    let started = again.until(|e| e["event"] == "started");
    says(&started["notices"].to_string(), &["unfinished copy", "was started over"]);
    again.wait().done();
}

#[test]
fn a_shell_that_dies_ends_both_ends() {
    let (_link, scene, attempt) = copying();
    signal(shell_of(&attempt), "KILL");
    let reason = attempt.wait().failed(1);
    says(&reason, &["the remote shell to there was killed in the middle of the job", "check there"]);
    scene.untouched();
}

#[test]
fn a_stopped_sender_is_given_up() {
    let (_link, scene, attempt) = copying();
    let sender = scene.receiver();
    signal(sender, "STOP");
    let reason = attempt.wait().failed(6);
    says(&reason, &["there fell silent", "nothing heard for 3 s", "run the same command again"]);
    signal(sender, "CONT");
    scene.untouched();
}

#[test]
fn a_cut_link_ends_both_ends() {
    let (link, scene, attempt) = copying();
    link.cut().unwrap();
    attempt.wait().failed(6);
    scene.untouched();
}

/// The shell survives as well; each end finds out by itself.
#[test]
fn a_link_that_comes_back_is_used_again() {
    let (link, scene, mut attempt) = copying_with("60");
    link.cut().unwrap();
    attempt.until(|e| e["event"] == "lost" && e["connection"] == 0);
    link.mend().unwrap();
    attempt.until(|e| e["event"] == "restored" && e["connection"] == 0);
    hurry(&link);
    attempt.wait().done();
    scene.arrived();
}

#[test]
fn an_interrupt_on_a_cut_link_still_ends_both_ends() {
    let (link, scene, attempt) = copying();
    link.cut().unwrap();
    attempt.signal("INT");
    attempt.wait().failed(6);
    scene.untouched();
}

#[test]
fn space_that_another_takes_in_mid_copy_is_this_hosts_reason() {
    let place = folder();
    let disk = LoopDisk::new(place.path(), 160 * MIB, Fs::Ext4, 512).unwrap();
    let link = slow_link();
    let scene = Scene::new(112 * MIB).to(disk.folder().unwrap());
    let mut attempt = start(&scene, &over(&scene, &link).args(["--log-interval", "0.1"]));
    attempt.until_copying();
    let other = scene.there.join("other");
    // Fails when it has taken the last block, as it shall.
    Command::new("fallocate").args(["-l", "120M"]).arg(&other).status().unwrap();
    let fill = format!("if=/dev/zero of={} bs=64K oflag=append conv=notrunc", other.display());
    Command::new("dd").args(fill.split(' ')).stderr(std::process::Stdio::null()).status().unwrap();
    hurry(&link);
    let reason = attempt.wait().failed(1);
    says(&reason, &["No space left"]);
    assert!(!reason.starts_with("there: "), "{reason}");
    fs::remove_file(&other).unwrap();
    scene.untouched_but_for(HANG);
}
