//! C6: a flush that failed once. What it was to make durable is not in the ledger, whatever later
//! flushes say, and is sent again by the same command.

use std::fs;

use testbed::disk::{Fs, LoopDisk};
use testbed::faults::{FaultFs, Faults};

use crate::ferry::folder;
use crate::scene::{Scene, notices, says};
use crate::watch::eventually;

const MIB: u64 = 1 << 20;
const IMAGE: u64 = 48 * MIB;

/// After so many flushes, of the copy and its ledger in turn, one fails. Then the power goes, and
/// with it all that was not durable.
fn fails_after(flushes: u64, options: &[&str]) {
    let place = folder();
    let (backing, mount) = (place.path().join("backing"), place.path().join("mount"));
    [&backing, &mount].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let disk = FaultFs::mount_volatile(&backing, &mount, Faults::default()).unwrap();
    let scene = Scene::new(IMAGE).to(&mount);
    let ferry = || scene.local().args(["--sync-window", "8M"]).args(options.iter().copied());
    let attempt = scene.start(&ferry().args(["--limit", "80MiB/s"]));
    eventually("it is flushed", || (disk.counts().fsyncs >= flushes).then_some(()));
    disk.set(Faults { failing_fsyncs: 1, ..Faults::default() });
    let reason = attempt.wait().failed(1);
    let which = if reason.contains("cannot note in") { "ledger" } else { "part" };
    let path = scene.there.join(format!("disk.img.vmferry-{which}"));
    says(&reason, &["there: cannot ", path.to_str().unwrap(), "Input/output error"]);
    scene.untouched();
    disk.power_loss(flushes).unwrap();
    // Readback reads all that the ledger calls durable: a range too many would be found.
    let sent = scene.send(&ferry().args(["--verify", "readback"]));
    let done = sent.done();
    let number = |field: &str| done[field].as_u64().unwrap();
    let told = notices(&sent).join("\n");
    assert!(number("resumed_bytes") > 0 && !told.contains("started over"), "{flushes}: {done} {told}");
    assert!(number("resumed_bytes") < IMAGE, "{done}");
    assert_eq!(number("resumed_bytes") + number("data_bytes"), IMAGE);
    scene.arrived();
}

#[test]
fn c6_what_a_failed_flush_lost_is_sent_again() {
    for (flushes, options) in [
        (4, &["--streams", "1"][..]),
        (5, &["--streams", "8", "--no-direct"]),
        (6, &["--streams", "8"]),
        (7, &[]),
    ] {
        fails_after(flushes, options);
    }
}

/// The pool behind a thin volume is full; somebody makes it larger, and the same command goes on or
/// starts over, as the file system lets it, and is right.
#[test]
fn c6_a_thin_volume_whose_pool_gets_room_again() {
    for options in [&[][..], &["--no-direct"]] {
        let place = folder();
        let pool = LoopDisk::new(place.path(), 160 * MIB, Fs::Ext4NoJournal, 512).unwrap();
        let ballast = pool.folder().unwrap().join("ballast");
        let words = ["-l", "120M"];
        assert!(
            std::process::Command::new("fallocate").args(words).arg(&ballast).status().unwrap().success()
        );
        let mut volume = LoopDisk::new(pool.folder().unwrap(), 96 * MIB, Fs::Ext4, 512).unwrap();
        let scene = Scene::new(48 * MIB).to(volume.folder().unwrap());
        let ferry = || scene.local().args(["--sync-window", "4M"]).args(options.iter().copied());
        let sent = scene.send(&ferry().args(["--limit", "80MiB/s"]));
        let reason = sent.failed(1);
        assert!(
            ["No space left on device", "Input/output error", "Read-only file system"]
                .iter()
                .any(|c| reason.contains(c)),
            "{reason}"
        );
        assert!(!scene.there.join("disk.img").exists());
        fs::remove_file(&ballast).unwrap();
        scene.no_receiver(crate::scene::HANG);
        volume.remount().unwrap();
        scene.send(&ferry().args(["--verify", "readback"])).done();
        scene.arrived();
    }
}
