//! Exit code 2: the command line makes no sense; no host was asked anything.

use std::process::Command;

use crate::ferry::vmferry;
use crate::scene::{Attempt, Scene, says};

/// What 'vmferry key' prints.
const KEY: &str = "SHA256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn run(words: &[&str]) -> crate::ferry::Sent {
    let mut command = Command::new(vmferry());
    command.args(words).stdin(std::process::Stdio::null());
    Attempt::start(command).wait()
}

#[test]
fn words_that_make_no_sense() {
    for words in [
        &[][..],
        &["frobnicate"],
        &["send"],
        &["send", "disk.img"],
        &["send", "disk.img", "/local/path"],
        &["send", "disk.img", "plain"],
        &["send", "disk.img", "-oProxyCommand=x:y"],
        &["send", "disk.img", "there:", "--streams", "0"],
        &["send", "disk.img", "there:", "--streams", "257"],
        &["send", "disk.img", "there:", "--chunk", "3M"],
        &["send", "disk.img", "there:", "--transport", "carrier-pigeon"],
        &["send", "disk.img", "there:", "--engine", "steam"],
        &["send", "disk.img", "there:", "--memory", "0"],
        &["send", "disk.img", "there:", "--port", "70000"],
        &["send", "disk.img", "there:", "-4", "-6"],
        &["send", "disk.img", "there:", "--limit", "5M"],
        &["send", "disk.img", "there:", "--peer-timeout", "1"],
        &["send", "disk.img", "there:", "--no-such-option"],
        &["receive"],
        &["receive", "--once"],
        &["receive", "--once", "--stdio", "--into", "/tmp"],
        &["receive", "--listen", "7000"],
        &["send", "disk.img", "vmferry://"],
        &["send", "disk.img", "vmferry://there:0/"],
        &["send", "disk.img", "vmferry://there/", "--port", "7000"],
        &["send", "disk.img", "vmferry://there/", "--rsh", "ssh"],
        &["send", "disk.img", "VMFERRY://there/", "--remote-path", "vmferry"],
        &["verify"],
        &["verify", "a", "b", "c"],
        &["verify", "a", "there:"],
        &["verify", "a", "there:folder/"],
        &["verify", "a", "vmferry://there/a"],
        &["verify", "a", "-oProxyCommand=x:y"],
        &["verify", "a", "there:b", "--size", "0"],
        &["verify", "a", "there:b", "--peer-timeout", "1"],
        &["verify", "--once"],
        &["verify", "a", "--once", "--stdio"],
        &["status", "--force"],
        &["drop"],
        &["drop", "--inplace", "disk.img"],
        &["allow", "--overwrite"],
        &["allow", "--remove"],
        &["allow", "SHA256:12"],
        &["allow", "--into", "/etc", KEY],
        &["allow", "--device", "sda", KEY],
        &["allow", "--remove", "--overwrite", KEY],
        &["trust", "there"],
        &["trust", "a b", KEY],
    ] {
        let sent = run(words);
        assert_eq!(sent.exit, 2, "{words:?}: {}", sent.stderr);
        assert!(sent.stdout.is_empty() && !sent.stderr.is_empty(), "{words:?}");
    }
}

/// A script reads one language, whatever went wrong.
#[test]
fn with_json_a_wrong_command_line_is_an_object_as_well() {
    for (word, named) in [("--no-such-option", "--no-such-option"), ("--streams=0", "--streams")] {
        let sent = run(&["send", "disk.img", "there:", word, "--json"]);
        assert_eq!(sent.exit, 2);
        let events = sent.events();
        assert_eq!((events.len(), &events[0]["event"], &events[0]["exit"]), (1, &"failed".into(), &2.into()));
        says(events[0]["reason"].as_str().unwrap(), &[named]);
    }
    assert!(run(&["send", "--help", "--json"]).stdout.contains("Usage"), "help is help");
}

#[test]
fn the_receiving_end_by_hand_says_how_it_is_started() {
    let sent = run(&["receive", "--once", "--stdio"]);
    assert_eq!(sent.exit, 2);
    says(&sent.stderr, &["this is the receiving end", "vmferry send IMAGE HOST:PATH"]);
}

#[test]
fn commands_with_broken_quotes_are_not_run() {
    let scene = Scene::new(4096);
    let mark = scene.here.path().join("asked");
    let asks = || scene.local().rsh(format!("touch {}", mark.display()));
    let reason = scene.send(&asks().rsh("touch 'x")).failed(2);
    says(&reason, &["--rsh 'touch 'x'", "check its quotes"]);
    let reason = scene.send(&asks().remote_path("")).failed(2);
    says(&reason, &["--remote-path"]);
    assert!(!mark.exists(), "no host was asked");
    scene.untouched();
}
