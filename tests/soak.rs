//! A short soak: random jobs under random faults keep what they promise. `make soak` is the long one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;

#[test]
fn random_jobs_under_random_faults_keep_what_they_promise() {
    let seed = std::env::var("VMFERRY_TEST_SEED").unwrap_or_else(|_| "1".into());
    let soak = Command::new(testbed::binary().unwrap())
        .args(["soak", "--seconds", "20", "--seed", &seed, "--vmferry", env!("CARGO_BIN_EXE_vmferry")])
        .args(["--place", env!("CARGO_TARGET_TMPDIR")])
        .output()
        .unwrap();
    let (said, complaints) = (String::from_utf8_lossy(&soak.stdout), String::from_utf8_lossy(&soak.stderr));
    assert!(soak.status.success(), "{said}\n{complaints}");
    assert!(!said.contains("jobs 0,"), "{said}");
}
