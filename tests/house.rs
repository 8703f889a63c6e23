//! The rules of the house: which room may call which, and who may name which library.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Direct dependencies (not those of tests) per package of the workspace.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |package: &Value| {
        let normal = package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null());
        normal.map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.map(|p| (p["name"].as_str().unwrap().to_owned(), names(p))).collect()
}

#[test]
fn rooms_call_only_the_rooms_they_may() {
    let may: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("vmferry-proto", &[][..]),
        ("vmferry-blockio", &[]),
        ("vmferry-lanes", &["vmferry-proto"]),
        ("vmferry-sender", &["vmferry-proto", "vmferry-blockio", "vmferry-lanes"]),
        ("vmferry-receiver", &["vmferry-proto", "vmferry-blockio", "vmferry-lanes"]),
        ("vmferry-testbed", &[]),
        ("vmferry-benches", &["vmferry-blockio", "vmferry-testbed"]),
        (
            "vmferry",
            &["vmferry-proto", "vmferry-blockio", "vmferry-lanes", "vmferry-sender", "vmferry-receiver"],
        ),
    ]);
    for (package, uses) in dependencies() {
        let allowed =
            may.get(package.as_str()).unwrap_or_else(|| panic!("{package} is not in the house plan"));
        for ours in uses.iter().filter(|d| d.starts_with("vmferry")) {
            assert!(allowed.contains(&ours.as_str()), "{package} may not use {ours}");
        }
    }
}

#[test]
fn each_library_is_named_in_its_room_only() {
    let rooms: [(&str, &[&str]); 6] = [
        ("io-uring", &["vmferry-blockio"]),
        ("rustls", &["vmferry-lanes"]),
        ("tokio-rustls", &["vmferry-lanes"]),
        ("quinn", &["vmferry-lanes"]),
        ("socket2", &["vmferry-lanes"]),
        ("virt", &["vmferry-handoff"]),
    ];
    for (package, uses) in dependencies() {
        for (library, allowed) in &rooms {
            assert!(
                !uses.contains(*library) || allowed.contains(&package.as_str()),
                "{package} may not use {library}"
            );
        }
    }
    let all = dependencies();
    for pure in ["tokio", "rustix", "libc"] {
        assert!(!all["vmferry-proto"].contains(pure), "proto is pure, without {pure}");
    }
}

/// `unsafe` lives in blockio alone: every other room denies it, and none turns that off.
#[test]
fn only_blockio_allows_unsafe() {
    let out = Command::new("grep")
        .args([
            "-rln",
            "--include=*.rs",
            r"allow(unsafe_code)",
            "src",
            "proto",
            "lanes",
            "sender",
            "receiver",
            "testbed",
            "benches",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "");
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"deny\""));
}
