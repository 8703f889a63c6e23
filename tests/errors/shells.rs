//! The remote shell, or what it finds on the other host, does not lead to a receiver.

use std::fs;
use std::path::PathBuf;

use proto::control::{self, BootstrapReply, SessionId};
use proto::version::{Hello, Role};

use crate::ferry::testbed;
use crate::scene::fake::{opening, shell};
use crate::scene::{Scene, says};

/// A file with what a receiver would say first.
fn bytes(scene: &Scene, hello: Hello, more: &[u8]) -> PathBuf {
    let path = scene.here.path().join("reply");
    fs::write(&path, [&opening(hello), more].concat()).unwrap();
    path
}

#[test]
fn a_host_without_vmferry_gets_the_command_that_installs_it() {
    let scene = Scene::new(4096);
    let reason = scene.send(&scene.local().remote_path("/nonexistent/vmferry")).failed(3);
    says(
        &reason,
        &["there has no '/nonexistent/vmferry'", "install it there (scp ", "--remote-path", "not found"],
    );
    let reason = scene.send(&scene.local().remote_path("/etc/passwd")).failed(3);
    says(&reason, &["there has no '/etc/passwd'", "Permission denied"]);
    scene.untouched();
}

#[test]
fn a_shell_that_is_not_there_or_does_not_get_in() {
    let scene = Scene::new(4096);
    let reason = scene.send(&scene.local().rsh("/nonexistent/ssh -p 22")).failed(3);
    says(&reason, &["cannot run '/nonexistent/ssh'", "No such file", "--rsh"]);
    let denied = "echo 'root@there: Permission denied (publickey).' >&2; exit 255";
    let reason = scene.send(&scene.local().rsh(shell(&scene, denied))).failed(3);
    says(
        &reason,
        &["could not start vmferry on there", "'sh' ended with 255", "Permission denied (publickey)"],
    );
    let killed = "kill -KILL $$";
    let reason = scene.send(&scene.local().rsh(shell(&scene, killed))).failed(3);
    says(&reason, &["could not start vmferry on there", "'sh' was killed"]);
    let reason = scene.send(&scene.local().rsh(shell(&scene, "echo This account is closed."))).failed(3);
    says(&reason, &["could not start vmferry on there", "'sh' ended with 0", "This account is closed."]);
    scene.untouched();
}

#[test]
fn a_talkative_login_is_no_obstacle() {
    let scene = Scene::new(1 << 20);
    let rsh = format!("{} local-shell --noise 'Last login: today on tty1'", testbed().display());
    scene.send(&scene.local().rsh(rsh)).done();
    scene.arrived();
}

#[test]
fn an_endless_talker_is_not_listened_to_for_ever() {
    let scene = Scene::new(4096);
    let reason = scene.send(&scene.local().rsh(shell(&scene, "yes hello; :"))).failed(3);
    says(&reason, &["could not start vmferry on there", "hello"]);
    scene.untouched();
}

#[test]
fn a_shell_that_hangs_is_given_up() {
    let scene = Scene::new(4096);
    let rsh = shell(&scene, "echo 'connecting...' >&2; sleep 70; :");
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["no answer from there through 'sh' within 50 s", "connecting..."]);
    scene.untouched();
}

#[test]
fn another_version_is_told_apart_by_its_numbers() {
    let scene = Scene::new(4096);
    let newer = Hello { min: 7, max: 9, ..Hello::ours(Role::Bootstrap) };
    let said = bytes(&scene, newer, &[]);
    let rsh = shell(&scene, &format!("cat {}; cat >/dev/null", said.display()));
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["there: the peer speaks wire versions 7 to 9", "install the same release on both hosts"]);
    scene.untouched();
}

#[test]
fn a_receiver_turns_away_a_sender_of_another_version() {
    let scene = Scene::new(4096);
    let newer = Hello { min: 7, max: 9, ..Hello::ours(Role::Bootstrap) };
    let said = bytes(&scene, newer, b"whatever comes next in version 7");
    let mut receiver = std::process::Command::new(crate::ferry::vmferry());
    receiver.args(["receive", "--once", "--stdio"]).stdin(fs::File::open(said).unwrap());
    let output = receiver.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, opening(Hello::ours(Role::Bootstrap)), "it tells its own version");
    says(&String::from_utf8_lossy(&output.stderr), &["wire versions 7 to 9"]);
}

#[test]
fn an_answer_that_is_none_is_said_to_be_none() {
    let scene = Scene::new(4096);
    let reply = BootstrapReply::Ready {
        fingerprint: [7; 32],
        session: SessionId([7; 16]),
        port: 9,
        addresses: vec![],
    };
    let reply = control::encode(&reply).unwrap();
    let ours = Hello::ours(Role::Bootstrap);
    let (cut, wild) = (&reply[..reply.len() - 1], &[255; 64][..]);
    for (more, what) in [(wild, "the answer cannot be read"), (cut, "could not start vmferry on there")] {
        let said = bytes(&scene, ours, more);
        let rsh = shell(&scene, &format!("cat {}", said.display()));
        says(&scene.send(&scene.local().rsh(rsh)).failed(3), &["there", what]);
    }
    scene.untouched();
}
