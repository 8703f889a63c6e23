//! The binary: links by hand, io_uring denied, a shell without a remote.

use std::path::Path;
use std::process::{Command, Output};

fn testbed(arguments: &[&str]) -> Output {
    let path = testbed::binary().expect("is built");
    Command::new(path).args(arguments).output().expect("runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Asks the kernel for a ring with arguments that it must refuse, and prints
/// the error number.
fn probe(call: &str, arguments: &[&str]) -> String {
    let script = format!("syscall({call}); print $!+0");
    let perl = ["--", "perl", "-e", &script];
    text(&testbed(&[&["deny-io-uring"], arguments, &perl].concat()))
}

#[test]
fn io_uring_setup_fails_as_told() {
    let call = format!("{}, 1, 0", libc::SYS_io_uring_setup);
    assert_eq!(probe(&call, &["EPERM"]), libc::EPERM.to_string());
    assert_eq!(probe(&call, &["ENOSYS"]), libc::ENOSYS.to_string());
    let allowed = probe(&call, &["ENOSYS", "--only-register"]);
    assert_ne!(allowed, libc::ENOSYS.to_string());
}

#[test]
fn io_uring_register_alone_fails_as_told() {
    let call = format!("{}, -1, 0, 0, 0", libc::SYS_io_uring_register);
    assert_eq!(probe(&call, &["EPERM", "--only-register"]), libc::EPERM.to_string());
    assert_ne!(probe(&call, &["EPERM"]), libc::EPERM.to_string());
}

#[test]
fn the_exit_code_of_the_command_comes_through() {
    let output = testbed(&["deny-io-uring", "EPERM", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_local_shell_runs_the_words_after_the_host() {
    let output = testbed(&["local-shell", "-o", "BatchMode=yes", "host", "echo", "a;", "echo b"]);
    assert_eq!(text(&output), "a\nb");
    let output = testbed(&["local-shell", "--noise", "Welcome!", "host", "echo", "a"]);
    assert_eq!(text(&output), "Welcome!\na");
}

/// Brings a link up, uses it from other processes, takes it down.
fn by_hand(name: &str, options: &[&str]) {
    let named = ["--name", name];
    let up = [&["up"], &named[..], options].concat();
    let said = text(&testbed(&up));
    assert!(said.contains(&format!("{name}-a 10.77.0.1")), "{said}");
    assert!(!testbed(&up).status.success(), "it is up already");
    let (a, b) = (format!("{name}-a"), format!("{name}-b"));
    let shown = text(&testbed(&["exec", "--name", name, "b", "ip", "-br", "addr"]));
    assert!(shown.contains("10.77.0.2/24"), "{shown}");
    let shown = text(&testbed(&["local-shell", "--netns", &a, "host", "ip", "-br", "addr"]));
    assert!(shown.contains("10.77.0.1/24"), "{shown}");
    for verb in [
        &["shape", "--total", "100mbit", "--flow", "50mbit"][..],
        &["cut"],
        &["mend"],
        &["cut", "--ports", "1", "2"],
        &["cut", "--larger", "1400"],
        &["mend"],
    ] {
        text(&testbed(&[verb, &named[..]].concat()));
    }
    text(&testbed(&["down", "--name", name]));
    for host in [a, b] {
        assert!(!Path::new("/run/netns").join(host).exists());
    }
    assert!(!testbed(&["cut", "--name", name]).status.success());
}

#[test]
fn a_link_by_hand() {
    by_hand(&format!("vmf-{}-hand", std::process::id()), &["--total", "1gbit", "--mtu", "9000"]);
}

#[test]
fn a_delayed_link_by_hand() {
    by_hand(&format!("vmf-{}-late", std::process::id()), &["--delay", "5"]);
}

#[test]
fn a_wrong_rate_is_a_usage_error() {
    let output = testbed(&["up", "--total", "fast"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("4950mbit"), "{output:?}");
}
