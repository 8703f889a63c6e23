//! D4: a disk or kernel that never completes a read: told with path and offset, and whoever has
//! enough of it can end the job.

use std::path::Path;

use testbed::disk::{Fs, LoopDisk};
use testbed::faults::Faults;

use crate::ferry::folder;
use crate::scene::{Attempt, HANG, Scene, fault_fs, says};
use crate::watch::eventually;

const MIB: u64 = 1 << 20;
const BAD: u64 = 5 * MIB;

fn one_stalls() -> Faults {
    Faults { stalled_reads: Some(BAD..BAD + 1), ..Faults::default() }
}

#[track_caller]
fn is_told(attempt: &mut Attempt, path: &Path) -> String {
    let told = attempt.until(|e| e["event"] == "stalled");
    let notice = told["notices"][0].as_str().unwrap().to_owned();
    says(&notice, &["no completion for ", " s: read", path.to_str().unwrap(), "at byte 5242880", "dmesg"]);
    notice
}

/// The read of a device is the ring's, and nobody has to wait for it.
fn a_device_ends_by(signal: &str) {
    let place = folder();
    let disk = fault_fs(place.path(), Faults::default());
    let device = LoopDisk::new(disk.path(), 16 * MIB, Fs::None, 512).unwrap();
    let scene = Scene::new(MIB);
    disk.set(one_stalls());
    let ferry = scene.local_as(device.device()).args(["--engine", "uring"]);
    let mut attempt = scene.start(&ferry);
    says(&is_told(&mut attempt, device.device()), &["--engine sync"]);
    attempt.signal(signal);
    attempt.wait().failed(6);
    scene.nothing_there(HANG);
    assert!(disk.stalled() > 0, "it never was answered");
    disk.set(Faults::default());
}

#[test]
fn d4_sigterm_ends_a_job_whose_read_never_does() {
    a_device_ends_by("TERM");
}

#[test]
fn d4_sigint_ends_a_job_whose_read_never_does() {
    a_device_ends_by("INT");
}

/// The thread that reads a file is the kernel's until the read ends, and the process with it; the job
/// ends, and says so.
#[test]
fn d4_a_read_in_a_thread_is_told_and_the_job_ends() {
    let place = folder();
    let disk = fault_fs(place.path(), Faults::default());
    let scene = Scene::new(16 * MIB);
    let image = disk.path().join("disk.img");
    std::fs::copy(&scene.image, &image).unwrap();
    disk.set(one_stalls());
    let mut attempt = scene.start(&scene.local_as(&image).args(["--engine", "sync"]));
    eventually("a read stalls", || (disk.stalled() > 0).then_some(()));
    let notice = is_told(&mut attempt, &image);
    assert!(!notice.contains("--engine"), "{notice}");
    attempt.signal("TERM");
    attempt.until(|e| e["event"] == "failed" && e["exit"] == 6);
    scene.nothing_there(HANG);
    assert!(disk.stalled() > 0, "it never was answered");
    disk.set(Faults::default());
    attempt.wait().failed(6);
}
