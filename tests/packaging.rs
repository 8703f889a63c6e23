//! The systemd units: valid, and as tight as they claim.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The units in a folder of their own, the command being the one under test.
fn units() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for unit in ["vmferry.service", "vmferry.socket"] {
        let text = fs::read_to_string(Path::new("packaging").join(unit)).unwrap();
        let text = text.replace("/usr/local/bin/vmferry", env!("CARGO_BIN_EXE_vmferry"));
        fs::write(folder.path().join(unit), text).unwrap();
    }
    folder
}

fn analyze(words: &[&str], files: &[&Path]) -> Output {
    let run = Command::new("systemd-analyze").args(words).args(files).output();
    run.unwrap_or_else(|e| panic!("systemd-analyze: {e}: apt-get install systemd"))
}

#[test]
fn units_are_valid() {
    let folder = units();
    let (service, socket) = (folder.path().join("vmferry.service"), folder.path().join("vmferry.socket"));
    let said = analyze(&["verify", "--man=no"], &[&service, &socket]);
    let complaints = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{complaints}");
    assert!(!complaints.contains("vmferry"), "{complaints}");

    let text = fs::read_to_string(&service).unwrap();
    fs::write(&service, text.replace("ProtectSystem=strict", "ProtectSystem=stict")).unwrap();
    let said = analyze(&["verify", "--man=no"], &[&service, &socket]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("stict"), "a mistake would be found");
}

/// `systemd-analyze security`: exposure from 0 (none) to 10; 3.0 is the most that is accepted.
#[test]
fn the_service_is_locked_down() {
    let folder = units();
    let service = folder.path().join("vmferry.service");
    let words = ["security", "--offline=true", "--no-pager", "--threshold=30"];
    let said = analyze(&words, &[&service]);
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && text.contains("Overall exposure level"), "{text}");

    let unit = fs::read_to_string(&service).unwrap();
    fs::write(&service, unit.replace("SystemCallFilter=", "#").replace("ProtectSystem=strict", "")).unwrap();
    assert!(!analyze(&words, &[&service]).status.success(), "a looser one would be found");
}
