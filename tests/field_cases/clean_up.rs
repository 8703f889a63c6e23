//! F1, F2, F3: whatever fails, the source stays, nothing is removed or cut that is not this job's
//! own, and nothing of it is in the way of the next attempt.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::faults::{Fallocate, Faults};
use testbed::images;

use crate::ferry::{Ferry, folder, vmferry};
use crate::scene::{Attempt, HANG, Scene, fault_fs, notices, signal};
use crate::watch::{eventually, tool};

const MIB: u64 = 1 << 20;

/// All that tells a file from another and from itself at another time.
fn identity(path: &Path) -> (u64, u64, u32, i64, i64, i64, i64) {
    let found = fs::metadata(path).unwrap();
    let (changed, modified) = ((found.ctime(), found.ctime_nsec()), (found.mtime(), found.mtime_nsec()));
    (found.ino(), found.size(), found.mode(), changed.0, changed.1, modified.0, modified.1)
}

#[test]
fn f1_the_source_is_what_it_was_whatever_fails() {
    let place = folder();
    let disk = fault_fs(place.path(), Faults::default());
    let scene = Scene::new(16 * MIB).to(disk.path());
    let before = identity(&scene.image);
    let fine = Faults::default;
    let failures = [
        Faults { failing_fsyncs: 1, ..fine() },
        Faults { failing_folder_fsyncs: 1, ..fine() },
        Faults { space: Some(5 * MIB), ..fine() },
        Faults { write_error: Some(9 * MIB..9 * MIB + 1), ..fine() },
        Faults { fallocate: Fallocate::NoSpace, ..fine() },
        Faults { corrupt_writes_at: Some(7 * MIB), ..fine() },
    ];
    for faults in failures {
        disk.set(faults.clone());
        let sent = scene.send(&scene.local().args(["--verify", "readback"]));
        assert!(sent.exit != 0, "{faults:?}: {}", sent.stdout);
        scene.untouched();
        assert_eq!(identity(&scene.image), before, "{faults:?}");
        // The next failure is one of a whole copy.
        fs::read_dir(disk.path()).unwrap().for_each(|left| fs::remove_file(left.unwrap().path()).unwrap());
    }
    // SIGTERM while it is written, flushed and read back.
    let slow = std::time::Duration::from_millis(300);
    let phases = [
        Faults { slow_writes: slow, ..fine() },
        Faults { slow_fsyncs: slow, ..fine() },
        Faults { stalled_reads: Some(8 * MIB..8 * MIB + 1), ..fine() },
    ];
    for (phase, faults) in phases.into_iter().enumerate() {
        disk.set(faults);
        disk.reset_counts();
        let attempt = scene.start(&scene.local().args(["--verify", "readback"]));
        eventually("it is there", || {
            let now = disk.counts();
            [now.writes > 0, now.fsyncs > 0, disk.stalled() > 0][phase].then_some(())
        });
        attempt.signal("TERM");
        attempt.wait();
        disk.set(fine());
        scene.no_receiver(HANG);
        assert_eq!(identity(&scene.image), before, "phase {phase}");
        scene.untouched();
    }
    disk.set(fine());
    scene.send(&scene.local()).done();
    scene.arrived();
    assert_eq!(identity(&scene.image), before);
}

/// Nothing that could be asked for takes a source away.
#[test]
fn f1_there_is_no_option_that_removes_the_source() {
    let help = tool(Command::new(vmferry()).args(["send", "--help"]));
    assert!(!help.contains("--remove"), "{help}");
    let scene = Scene::new(4096);
    scene.send(&scene.local().arg("--remove-source")).failed(2);
    scene.untouched();
}

/// The receiver's calls that take something away or give it another name, with what they name.
fn calls(trace: &Path) -> Vec<(String, Vec<String>)> {
    let lines = fs::read_to_string(trace).unwrap();
    let named = |line: &str| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    lines.lines().filter(|l| l.contains('(')).map(|l| (l.to_owned(), named(l))).collect()
}

/// Runs an attempt whose receiver is watched; `meanwhile` happens in it.
fn watched(scene: &Scene, ferry: Ferry, meanwhile: impl FnOnce(&mut Attempt)) -> i32 {
    let trace = scene.here.path().join("trace");
    let strace = format!(
        "strace -D -f -y -o {} -e trace=unlink,unlinkat,rmdir,rename,renameat,renameat2,truncate,ftruncate",
        trace.display()
    );
    let mut attempt = scene.start(&ferry.remote_path(format!("{strace} {}", scene.peer())));
    meanwhile(&mut attempt);
    let exit = attempt.wait().exit;
    scene.no_receiver(HANG);
    let folder = format!("<{}", scene.there.display());
    for (line, names) in calls(&trace) {
        let ours = |name: &String| {
            let own =
                ["disk.img", "disk.img.vmferry-part", "disk.img.vmferry-ledger", "disk.img.vmferry-ledge~"];
            own.contains(&name.as_str())
        };
        assert!(names.iter().all(ours), "{line}");
        assert!(line.contains(&folder), "not below the destination: {line}");
        // The final name is given, and only ever taken back after that.
        let removes_copy = line.contains("unlinkat(") && names == ["disk.img"];
        assert!(!removes_copy, "{line}");
    }
    exit
}

/// Files that look like the job's own, and are not.
fn bystanders(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let names = [
        "disk.img.vmferry-part~",
        "disk.img.vmferry-part2",
        "disk.vmferry-part",
        "other.img.vmferry-part",
        "other.img.vmferry-ledger",
        "disk.img.bak",
        "vmferry-part",
    ];
    let paths = names.map(|name| folder.join(name));
    paths
        .map(|path| {
            fs::write(&path, path.to_str().unwrap()).unwrap();
            (path.clone(), fs::read(&path).unwrap())
        })
        .into()
}

#[test]
fn f2_nothing_but_its_own_is_removed_renamed_or_cut() {
    let place = folder();
    let elsewhere =
        testbed::disk::LoopDisk::new(place.path(), 200 * MIB, testbed::disk::Fs::Ext4, 512).unwrap();
    let others = bystanders(elsewhere.folder().unwrap());
    let scene = Scene::new(48 * MIB).to(elsewhere.folder().unwrap());
    let slow = || scene.local().args(["--sync-window", "4M", "--limit", "60MiB/s", "--log-interval", "0.1"]);
    let (part, ledger) =
        (scene.there.join("disk.img.vmferry-part"), scene.there.join("disk.img.vmferry-ledger"));
    let ended_by = |name: &str| {
        watched(&scene, slow(), |attempt| {
            attempt.until(|e| e["event"] == "progress" && e["wire_bytes"].as_u64() > Some(9 * MIB));
            scene.receivers().into_iter().for_each(|pid| signal(pid, name));
        })
    };

    // Told to end; killed; started over, as the ledger is damaged; gone on with; replaced.
    assert_eq!(ended_by("TERM"), 6);
    assert_eq!(ended_by("KILL"), 1);
    assert!(part.exists());
    let bytes = fs::read(&ledger).unwrap();
    fs::write(&ledger, &bytes[..4000]).unwrap();
    assert_eq!(ended_by("KILL"), 1);
    assert_eq!(watched(&scene, scene.local(), |_| {}), 0);
    assert_eq!(watched(&scene, scene.local().arg("--force"), |_| {}), 0);
    for (path, content) in others {
        assert_eq!(fs::read(&path).unwrap(), content, "{}", path.display());
        fs::remove_file(path).unwrap();
    }
    images::equal(&scene.image, &scene.there.join("disk.img")).unwrap();
}

/// The disk ran full, somebody made room: the same command at once.
#[test]
fn f3_what_ran_out_of_space_goes_on_where_it_was() {
    let place = folder();
    let disk = fault_fs(place.path(), Faults { space: Some(20 * MIB), ..Faults::default() });
    let scene = Scene::new(32 * MIB).to(disk.path());
    let ferry = || scene.local().args(["--sync-window", "4M"]);
    let reason = scene.send(&ferry().args(["--limit", "60MiB/s"])).failed(1);
    assert!(reason.contains("No space left on device"), "{reason}");
    scene.untouched();
    disk.set(Faults::default());
    let sent = scene.send(&ferry());
    let number = |event: &Value, field: &str| event[field].as_u64().unwrap();
    let (done, told) = (sent.done(), notices(&sent));
    assert!(number(&done, "resumed_bytes") > 0, "{done} {told:?}");
    assert_eq!(number(&done, "resumed_bytes") + number(&done, "data_bytes"), 32 * MIB);
    scene.arrived();
}

/// A finished copy of another image and an empty file are somebody's; (our own partial one: above and
/// `resume`; folders: `errors`; devices in use: `devices`).
#[test]
fn f3_what_is_not_ours_stays_and_force_replaces_it() {
    for content in [&b""[..], b"another image"] {
        let scene = Scene::new(MIB);
        let copy = scene.there.join("disk.img");
        fs::write(&copy, content).unwrap();
        let before = identity(&copy);
        let reason = scene.send(&scene.local()).failed(3);
        assert!(reason.contains("exists on the destination") && reason.contains("--force"), "{reason}");
        assert_eq!(identity(&copy), before);
        scene.send(&scene.local().arg("--force")).done();
        scene.arrived();
    }
}

/// From A to B and back again while the first one still lies at A.
#[test]
fn f3_there_and_back_again() {
    let scene = Scene::new(MIB);
    scene.send(&scene.local()).done();
    let copy = scene.there.join("disk.img");
    let back = scene.local_as(&copy).command(scene.here.path());
    let reason = crate::scene::Attempt::start(back).wait().failed(3);
    assert!(reason.contains("exists on the destination"), "{reason}");
    scene.arrived();
}
