//! D1: io_uring is forbidden on one end or both. D3: little memory may be locked.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testbed::images;

use crate::ferry::{Sent, testbed, vmferry};
use crate::scene::fake::shell;
use crate::scene::{AS_NOBODY, Attempt, Scene, notices, public_folder, public_program, says};

/// Notices about io_uring.
fn told(sent: &Sent) -> Vec<String> {
    notices(sent).into_iter().filter(|n| n.contains("io_uring")).collect()
}

struct Denied {
    sender: bool,
    receiver: bool,
}

/// The shell that starts a receiver. It has ended when that has detached itself.
struct Apart(Child);

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A receiver that is no descendant of the sender, and the remote shell that leads to it: a filter
/// on the sender holds for all that it starts.
fn receiver_apart(scene: &Scene) -> (Apart, String) {
    let at = |name: &str| scene.here.path().join(name).display().to_string();
    let (to, from) = (at("to-receiver"), at("from-receiver"));
    assert!(Command::new("mkfifo").args([&to, &from]).status().unwrap().success());
    let receiver = format!("{} receive --once --stdio <{to} >{from}", scene.peer());
    let receiver = Command::new("sh").args(["-c", &receiver]).spawn().unwrap();
    // A command in the background has no stdin of its own.
    (Apart(receiver), shell(scene, &format!("exec 3<&0; cat <&3 >{to} & cat {from}")))
}

/// A job on which `deny` lies, as words of the test bed's command.
fn without(deny: &str, ends: &Denied) -> Vec<String> {
    let scene = Scene::new((6 << 20) + 1);
    let deny = format!("{} deny-io-uring {deny} --", testbed().display());
    let mut ferry = scene.local();
    if ends.sender {
        ferry = ferry.wrap(deny.split(' '));
    }
    let apart = (ends.sender && !ends.receiver).then(|| receiver_apart(&scene));
    if let Some((_, rsh)) = &apart {
        ferry = ferry.rsh(rsh);
    }
    if ends.receiver {
        ferry = ferry.remote_path(format!("{deny} {}", scene.peer()));
    }
    let sent = scene.send(&ferry);
    let engine = match (ends.sender, ends.receiver) {
        (true, true) => "sync",
        (true, false) => "sync/uring",
        (false, true) => "uring/sync",
        (false, false) => "uring",
    };
    assert_eq!(sent.done()["engine"], engine);
    scene.arrived();
    told(&sent)
}

#[test]
fn d1_both_ends_use_io_uring_where_they_may_and_say_nothing() {
    let none: [String; 0] = [];
    assert_eq!(without("EPERM", &Denied { sender: false, receiver: false }), none);
}

#[test]
fn d1_denied_on_one_end_or_both_the_result_is_equal_and_each_end_tells_why() {
    for (deny, cause) in [
        ("EPERM", "Operation not permitted"),
        ("ENOSYS", "Function not implemented"),
        ("EPERM --only-register", "Operation not permitted"),
    ] {
        for (sender, receiver) in [(true, false), (false, true), (true, true)] {
            let told = without(deny, &Denied { sender, receiver });
            assert_eq!(told.len(), usize::from(sender) + usize::from(receiver), "{deny}: {told:?}");
            for notice in &told {
                says(
                    notice,
                    &["io_uring is not available", cause, "using plain system calls", "allow io_uring_setup"],
                );
            }
            let there = told.iter().filter(|n| n.starts_with("there: ")).count();
            assert_eq!(there, usize::from(receiver), "it says on which end: {told:?}");
        }
    }
}

#[test]
fn d1_an_engine_that_was_asked_for_is_not_replaced() {
    let scene = Scene::new(4096);
    let deny = format!("{} deny-io-uring EPERM --", testbed().display());
    let here = scene.local().wrap(deny.split(' ')).args(["--engine", "uring"]);
    says(&scene.send(&here).failed(3), &["cannot start io_uring", "allow io_uring_setup"]);
    scene.untouched();
    let there = scene.local().remote_path(format!("{deny} {}", scene.peer())).args(["--engine", "uring"]);
    says(&scene.send(&there).failed(3), &["there: cannot start io_uring", "allow io_uring_setup"]);
    scene.untouched();
}

/// Both ends as a user without rights and with 64 KiB of locked memory.
fn with_little_locked_memory(options: &[&str]) {
    let public = public_folder();
    let (program, shell) =
        (public_program(public.path(), Path::new(vmferry())), public_program(public.path(), &testbed()));
    let (image, there) = (public.path().join("disk.img"), public.path().join("there"));
    images::random(&image, (6 << 20) + 1, 1).unwrap();
    fs::create_dir(&there).unwrap();
    std::os::unix::fs::chown(&there, Some(65534), Some(65534)).unwrap();
    let mut command = Command::new("prlimit");
    command.args(["--memlock=65536:65536"]).args(AS_NOBODY.split(' ')).arg(&program);
    command.args(["send", "--json"]).args(options).arg(&image).arg(format!("there:{}", there.display()));
    command.args(["--rsh", &format!("{} local-shell", shell.display())]);
    command.args(["--remote-path", program.to_str().unwrap()]).stdin(Stdio::null());
    let sent = Attempt::start(command).wait();
    assert_eq!(sent.done()["engine"], "uring");
    images::equal(&image, &there.join("disk.img")).unwrap();
    let told = told(&sent);
    assert_eq!(told.len(), 2, "one per end: {told:?}");
    for notice in &told {
        says(
            notice,
            &["bytes of locked memory", "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l", "LimitMEMLOCK="],
        );
    }
}

#[test]
fn d3_little_locked_memory_costs_only_the_registration() {
    with_little_locked_memory(&[]);
}

#[test]
fn d3_many_streams_share_one_budget_and_one_notice() {
    with_little_locked_memory(&["--streams", "64"]);
}
