//! Interrupted, vanished, changed meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use testbed::faults::Faults;

use crate::scene::{Attempt, fault_fs, says, signal};
use crate::{MIB, Pair, there};

/// Reading the holes of so large an image takes a while.
fn large() -> Pair {
    all_hole(256 << 30)
}

fn all_hole(size: u64) -> Pair {
    Pair::with(|path| File::create(path).unwrap().set_len(size).unwrap())
}

/// Both ends are reading.
fn under_way(pair: &Pair) -> Attempt {
    let mut attempt = pair.start(&["--log-interval", "0.1", "--peer-timeout", "3"], &pair.apart());
    attempt.until(|e| e["event"] == "progress" && e["done_bytes"].as_u64() > Some(0));
    attempt
}

#[test]
fn a_signal_ends_both_ends() {
    for name in ["INT", "TERM", "HUP"] {
        let pair = large();
        let attempt = under_way(&pair);
        attempt.signal(name);
        says(&attempt.wait().failed(6), &["interrupted", "nothing was changed"]);
        pair.nobody_is_left();
    }
}

#[test]
fn a_signal_there_is_told_here() {
    let pair = large();
    let attempt = under_way(&pair);
    pair.peers().into_iter().for_each(|pid| signal(pid, "TERM"));
    says(&attempt.wait().failed(6), &["there: ", "told to end"]);
    pair.nobody_is_left();
}

#[test]
fn an_end_that_is_killed_is_missed() {
    let pair = large();
    let attempt = under_way(&pair);
    pair.peers().into_iter().for_each(|pid| signal(pid, "KILL"));
    says(&attempt.wait().failed(1), &["the remote shell to there", "check there"]);
}

#[test]
fn who_compares_is_killed_and_the_other_end_ends() {
    let pair = large();
    let attempt = under_way(&pair);
    attempt.signal("KILL");
    pair.nobody_is_left();
}

#[test]
fn a_silent_end_is_dead() {
    let pair = large();
    let attempt = under_way(&pair);
    let peers = pair.peers();
    peers.iter().for_each(|pid| signal(*pid, "STOP"));
    says(&attempt.wait().failed(1), &["there: nothing heard for 3 s"]);
    peers.iter().for_each(|pid| signal(*pid, "KILL"));
    pair.nobody_is_left();
}

#[test]
fn an_image_that_changes_is_not_called_equal() {
    for remote in [false, true] {
        for cut in [false, true] {
            let pair = all_hole(8 << 30);
            let attempt = under_way(&pair);
            let changed = if remote { &pair.b } else { &pair.a };
            let file = File::options().write(true).open(changed).unwrap();
            if cut {
                file.set_len(2 << 30).unwrap();
            } else {
                // Where both have been already: the content compared is equal.
                file.write_all_at(&[0], 0).unwrap();
            }
            drop(file);
            let reason = attempt.wait().failed(1);
            let what = if cut {
                "its size went from 8589934592 to 2147483648 bytes"
            } else {
                "its time stamps moved"
            };
            says(&reason, &[changed.to_str().unwrap(), "changed while it was read", what, "verify again"]);
            assert_eq!(reason.starts_with("there: "), remote, "{reason}");
        }
    }
}

#[test]
fn a_disk_that_cannot_be_read_is_named_with_the_place() {
    let pair = Pair::with(|path| testbed::images::random(path, 8 * MIB, 5).unwrap());
    let place = crate::ferry::folder();
    let faults = Faults { read_error: Some(5 * MIB + 7..5 * MIB + 8), ..Faults::default() };
    let fs = fault_fs(place.path(), faults);
    let bad = fs.path().join("bad.img");
    std::fs::copy(&pair.a, place.path().join("backing/bad.img")).unwrap();
    for image in [bad.clone().into_os_string(), there(&bad)] {
        let reason = pair.start(&[], &[pair.a.clone().into(), image]).wait().failed(1);
        says(&reason, &[bad.to_str().unwrap(), "at byte 5242880", "Input/output error"]);
    }
}

#[test]
fn nobody_waits_for_a_shell_that_does_not_answer() {
    let pair = Pair::equal(MIB);
    let script = pair.folder.path().join("shell");
    let asked = pair.folder.path().join("asked");
    std::fs::write(&script, format!("touch {}; exec sleep 20", asked.display())).unwrap();
    let mut command = Command::new(crate::ferry::vmferry());
    command.args(["verify", "--json"]).args(pair.apart()).args(["-e", &format!("sh {}", script.display())]);
    let attempt = Attempt::start(command);
    while !asked.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    attempt.signal("INT");
    says(&attempt.wait().failed(6), &["interrupted"]);
}
