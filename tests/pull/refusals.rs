//! What is refused, is refused by the end that knows, and the message tells which one that is.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use proto::control;
use proto::errand::News;
use proto::version::{Hello, Role};
use testbed::disk::{Fs, LoopDisk};
use testbed::net::{Link, LinkConfig};

use super::{MIB, fetch, local, over};
use crate::ferry::{folder, testbed, vmferry};
use crate::scene::fake::{opening, shell};
use crate::scene::{Attempt, Scene, says};

#[test]
fn hosts_that_make_no_sense() {
    for (words, why) in [
        (&["a.img", "b.img"][..], "is not HOST:PATH"),
        (&["h:a.img", "i:b"], "both on other hosts"),
        (&["h:a.img", "b.img", "x"], "'b.img' is on this host and 'h:a.img' is not"),
        (&["a.img", "h:b.img", "x"], "'a.img' is on this host"),
        (&["h:a.img", "i:b.img", "x"], "images of one job come from one host, not from h and i"),
        (&["u@h:a.img", "h:b.img", "x"], "not from u@h and h"),
        (&["h:", "x"], "names no image"),
    ] {
        let mut command = Command::new(vmferry());
        command.arg("send").args(words).stdin(Stdio::null());
        let sent = Attempt::start(command).wait();
        assert_eq!((sent.exit, sent.stdout.as_str()), (2, ""), "{words:?}: {}", sent.stderr);
        says(&sent.stderr, &[why]);
    }
}

#[test]
fn the_sending_end_by_hand_says_how_it_is_started() {
    let mut command = Command::new(vmferry());
    command.args(["send", "--once", "--stdio"]).stdin(Stdio::null());
    let sent = Attempt::start(command).wait();
    assert_eq!(sent.exit, 2);
    says(&sent.stderr, &["this is the sending end of a pull", "vmferry send HOST:IMAGE"]);
}

#[test]
fn what_stands_here_is_kept() {
    let scene = Scene::new(MIB);
    let copy = scene.there.join("disk.img");
    fs::write(&copy, "precious").unwrap();
    let scene = scene.expecting_what_is_there();
    let reason = fetch(&scene, &local(&scene)).failed(3);
    says(&reason, &["exists", "--force"]);
    assert!(reason.starts_with(copy.to_str().unwrap()), "this host has no name: {reason}");
    scene.untouched();
    assert_eq!(fs::read_to_string(&copy).unwrap(), "precious");
    fetch(&scene, &local(&scene).arg("--force")).done();
    scene.arrived();
}

#[test]
fn no_room_here_is_said_without_a_host() {
    let place = folder();
    let disk = LoopDisk::new(place.path(), 32 * MIB, Fs::Ext4, 512).unwrap();
    let scene = Scene::new(40 * MIB).to(disk.folder().unwrap());
    for dry in [None, Some("--dry-run")] {
        let reason = fetch(&scene, &local(&scene).args(dry)).failed(3);
        assert!(reason.starts_with("not enough room in"), "{reason}");
        scene.untouched();
    }
}

#[test]
fn unknown_owners_are_looked_up_here() {
    let scene = Scene::new(4096);
    let reason = fetch(&scene, &local(&scene).args(["--chown", "no-such-user"])).failed(3);
    assert!(reason.starts_with("user 'no-such-user' is unknown"), "{reason}");
    scene.untouched();
}

#[test]
fn what_is_wrong_there_begins_with_the_host() {
    let scene = Scene::new(MIB);
    let missing = scene.here.path().join("missing.img");
    let reason = Attempt::start(local(&scene).fetching([&missing], &scene.there)).wait().failed(3);
    assert!(reason.starts_with("there: cannot open"), "{reason}");
    says(&reason, &["missing.img", "No such file"]);

    let writer = fs::File::options().write(true).open(&scene.image).unwrap();
    let reason = fetch(&scene, &local(&scene)).failed(3);
    assert!(reason.starts_with("there: "), "{reason}");
    says(&reason, &["is in use"]);
    drop(writer);

    let reason = fetch(&scene, &local(&scene).args(["--memory", "2M"])).failed(2);
    assert!(reason.starts_with("there: "), "{reason}");
    scene.untouched();
}

#[test]
fn a_host_without_vmferry_gets_the_command_that_installs_it() {
    let scene = Scene::new(4096);
    let reason = fetch(&scene, &local(&scene).remote_path("/nonexistent/vmferry")).failed(3);
    says(&reason, &["there has no '/nonexistent/vmferry'", "install it there (scp "]);
    scene.untouched();
}

#[test]
fn no_free_port_here_is_this_hosts_own_reason() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let _taken = link.a().inside(|| std::net::TcpListener::bind("[::]:7000").unwrap()).unwrap();
    let scene = Scene::new(4096);
    let reason = fetch(&scene, &over(&scene, &link).args(["--port", "7000"])).failed(3);
    assert!(reason.starts_with("cannot listen on port 7000"), "{reason}");
    scene.untouched();
}

/// Fetches through a firewall on this host.
fn through(verdict: &str) -> String {
    let link = Link::up(LinkConfig::default()).unwrap();
    let rules = format!(
        "add table inet t; add chain inet t in {{ type filter hook input priority 0; }}; \
         add rule inet t in tcp dport 7000 {verdict}"
    );
    assert!(link.a().command("nft").arg(rules).status().unwrap().success());
    let scene = Scene::new(MIB);
    let reason = fetch(&scene, &over(&scene, &link).args(["--port", "7000"])).failed(3);
    scene.untouched();
    reason
}

#[test]
fn a_blocked_way_back_names_port_and_direction() {
    let silent = thread::spawn(|| through("drop"));
    let reset = thread::spawn(|| through("reject with tcp reset"));
    let prohibited = thread::spawn(|| through("reject with icmpx type admin-prohibited"));
    for (blocked, how) in [
        (silent, "no answer from 10.77.0.1:7000"),
        (reset, "refused by 10.77.0.1:7000"),
        (prohibited, "No route"),
    ] {
        let reason = blocked.join().unwrap();
        assert!(reason.starts_with("there: cannot reach this host on TCP port 7000: "), "{reason}");
        says(&reason, &[how, "choose a port with --port", "an address of this host with --via"]);
    }
}

#[test]
fn a_name_of_this_host_that_is_unknown_there() {
    let scene = Scene::new(4096);
    let reason = fetch(&scene, &local(&scene).args(["--via", "no-such-host.invalid"])).failed(3);
    says(&reason, &["there: cannot connect to 'no-such-host.invalid'", "--via"]);
    scene.untouched();
}

#[test]
fn a_sender_that_talks_nonsense_is_not_believed() {
    let scene = Scene::new(4096);
    let said = |name: &str, news: &[u8]| {
        let path = scene.here.path().join(name);
        fs::write(&path, [&opening(Hello::ours(Role::Bootstrap)), news].concat()).unwrap();
        shell(&scene, &format!("cat {}", path.display()))
    };
    let meter = control::encode(&News::Meter(Box::default())).unwrap();
    let wild = [&meter[..], &[255; 64]].concat();
    let reason = fetch(&scene, &local(&scene).rsh(said("wild", &wild))).failed(3);
    says(&reason, &["there: what it says cannot be read"]);
    // Out of turn.
    let done = control::encode(&News::Overwriting("/dev/sda".into())).unwrap();
    let reason = fetch(&scene, &local(&scene).rsh(said("early", &done))).failed(3);
    says(&reason, &["there: what it says cannot be read"]);
    let reason = fetch(&scene, &local(&scene).rsh(said("short", &meter))).failed(3);
    says(&reason, &["the remote shell to there ended with 0", "run the same command again"]);
    // A failure that claims to be none.
    let zero = control::encode(&News::Failed(control::Failure::new(0, "all is well"))).unwrap();
    let reason = fetch(&scene, &local(&scene).rsh(said("zero", &zero))).failed(1);
    says(&reason, &["there: all is well"]);
    scene.untouched();
}

/// Whoever answers does not get to choose where this host writes.
#[test]
fn a_host_that_wants_something_else_written_is_refused() {
    // Changes the errand on its way, as that host could.
    const BETWEEN: &str = r#"
import os, subprocess, sys, threading
wanted, other = (word.encode() for word in sys.argv[1:3])
far = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE)
def copy():
    while piece := os.read(0, 65536):
        os.write(far.stdin.fileno(), piece.replace(wanted, other))
    far.stdin.close()
threading.Thread(target=copy, daemon=True).start()
sys.exit(far.wait())
"#;
    let (scene, elsewhere) = (Scene::new(4096), folder());
    let between = scene.here.path().join("between.py");
    fs::write(&between, BETWEEN).unwrap();
    let far = format!("{} local-shell", testbed().display());
    let sent = |wanted: &str, other: &str| {
        assert_eq!(wanted.len(), other.len());
        let rsh = format!("python3 {} {wanted} {other} {far}", between.display());
        fetch(&scene, &local(&scene).rsh(rsh))
    };
    let reason = sent(scene.there.to_str().unwrap(), elsewhere.path().to_str().unwrap()).failed(3);
    says(&reason, &["the sender came with another destination than it was asked for", "nothing was changed"]);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);

    fs::copy(&scene.image, scene.here.path().join("evil.img")).unwrap();
    let reason = sent("disk.img", "evil.img").failed(3);
    says(&reason, &["the sender came with other images than it was asked for"]);
    scene.untouched();
}
