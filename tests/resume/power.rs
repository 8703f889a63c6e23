//! Power cuts: what was called done is there and equal, a copy that has its name is complete, and the
//! same command goes on from what was durable.
//!
//! `VMFERRY_TEST_POINTS=200` for more cuts, `VMFERRY_TEST_SEED` for others.

use std::fs::{self, File};

use testbed::disk::{Fs, LoopDisk};
use testbed::faults::{Counts, FaultFs, Faults};
use testbed::images::content::Numbers;
use testbed::images::equal;
use testbed::net::{Link, LinkConfig, Side};

use super::kills::setting;
use super::{MIB, ledger, number, part, until_done};
use crate::ferry::{Ferry, folder};
use crate::scene::{HANG, Scene, notices, says, signal};
use crate::watch::eventually;

/// The receiver dies with its host.
fn kill(scene: &Scene) {
    scene.receivers().into_iter().for_each(|pid| signal(pid, "KILL"));
    scene.no_receiver(HANG);
}

/// ext4 that stops without writing its journal: what the ledger calls durable is there, and only what
/// is not is sent again.
#[test]
fn an_ext4_disk_loses_power_in_the_middle() {
    const SIZE: u64 = 256 * MIB;
    const WINDOW: u64 = 16 * MIB;
    /// As in `kills`, of two lanes.
    const IN_FLIGHT: u64 = 2 * (2 + 6 + 6 + 1) * MIB + 16 * MIB;
    let place = folder();
    let mut disk = LoopDisk::new(place.path(), 600 * MIB, Fs::Ext4, 512).unwrap();
    let link = Link::up(LinkConfig::default()).unwrap();
    let scene = Scene::new(SIZE).to(disk.folder().unwrap());
    let seed = setting("VMFERRY_TEST_SEED", 1);
    let mut dice = Numbers::new(seed);
    for point in 0..setting("VMFERRY_TEST_POINTS", 3) {
        let ferry = || scene.over(&link).args(["--streams", "2", "--sync-window", "16M"]);
        let at = dice.below(SIZE * 7 / 10);
        let before = link.sent_bytes(0, Side::A).unwrap();
        let mut attempt = scene.start(&ferry().args(["--log-interval", "0.1", "--limit", "80MiB/s"]));
        until_done(&mut attempt, at);
        kill(&scene);
        attempt.wait().failed(1);
        disk.power_loss().unwrap();
        let done = scene.send(&ferry()).done();
        assert!(
            at < 6 * WINDOW || number(&done, "resumed_bytes") > 0,
            "seed {seed}, point {point} ({at}): {done}"
        );
        let sent = link.sent_bytes(0, Side::A).unwrap() - before;
        let again = sent.saturating_sub(SIZE + SIZE / 100) / MIB;
        let most = (WINDOW + IN_FLIGHT) / MIB;
        assert!(again <= most, "seed {seed}, point {point} ({at}): {again} MiB were sent twice; {done}");
        // At once: nobody had time to write anything back.
        kill(&scene);
        disk.power_loss().unwrap();
        equal(&scene.image, &scene.there.join("disk.img")).unwrap();
        let _ = fs::remove_file(ledger(&scene));
        fs::remove_file(scene.there.join("disk.img")).unwrap();
    }
}

/// A folder on a disk that keeps nothing but what is synced.
fn volatile() -> (Scene, FaultFs, tempfile::TempDir) {
    let place = folder();
    let (backing, mount) = (place.path().join("backing"), place.path().join("mount"));
    [&backing, &mount].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let disk = FaultFs::mount_volatile(&backing, &mount, Faults::default()).unwrap();
    (Scene::new(IMAGE).to(&mount), disk, place)
}

const IMAGE: u64 = 20 * MIB + 4321;

/// One attempt whose host loses power when the disk was called so often. Whether it was done before.
fn cut(scene: &Scene, ferry: &Ferry, disk: &FaultFs, dice: &mut Numbers) -> bool {
    disk.reset_counts();
    let (bytes, calls, which) = (dice.below(IMAGE), dice.below(6) + 1, dice.below(3));
    let due = |now: Counts| match which {
        0 => now.written_bytes >= bytes,
        1 => now.fsyncs >= calls,
        _ => now.folder_fsyncs > calls / 3,
    };
    let mut attempt = scene.start(ferry);
    eventually("it is time", || (due(disk.counts()) || attempt.ended()).then_some(()));
    kill(scene);
    let exit = attempt.wait().exit;
    disk.power_loss(dice.any()).unwrap();
    let copy = scene.there.join("disk.img");
    assert!(exit != 0 || copy.exists(), "it was done");
    if copy.exists() {
        equal(&scene.image, &copy).unwrap();
    }
    exit == 0
}

/// Any mixture of what was not synced may be there.
#[test]
fn a_disk_that_keeps_only_what_is_synced() {
    let (scene, disk, _place) = volatile();
    let first = setting("VMFERRY_TEST_SEED", 1);
    let (mut resumed, mut strange) = (0, 0);
    for seed in first..first + setting("VMFERRY_TEST_POINTS", 6) {
        let mut dice = Numbers::new(seed);
        let window = ["256K", "2M", "8M"][dice.below(3) as usize];
        let chunk = ["64K", "256K", "1M"][dice.below(3) as usize];
        let streams = ["1", "2", "4"][dice.below(3) as usize];
        let ferry = scene.local().args(["--sync-window", window, "--chunk", chunk, "--streams", streams]);
        let copy = scene.there.join("disk.img");
        let cuts = 1 + dice.below(3);
        if !(0..cuts).any(|_| cut(&scene, &ferry, &disk, &mut dice)) {
            let mut sent = scene.send(&ferry);
            if sent.exit == 3 && copy.exists() {
                // It got its name, and no ledger says whose it is.
                says(&sent.failed(3), &["disk.img", "exists"]);
                equal(&scene.image, &copy).unwrap();
            } else {
                if sent.exit == 3 {
                    // Without attributes nothing but a ledger tells that it is ours.
                    says(&sent.failed(3), &["is not an unfinished copy of this user's"]);
                    strange += 1;
                    fs::remove_file(part(&scene)).unwrap();
                    sent = scene.send(&ferry);
                }
                let done = sent.done();
                let told = notices(&sent).join("\n");
                let wrong = ["does not hold what its ledger says", "its ledger is damaged"];
                assert!(!wrong.iter().any(|what| told.contains(what)), "seed {seed}: {told}");
                resumed += number(&done, "resumed_bytes");
                kill(&scene);
                disk.power_loss(dice.any()).unwrap();
                assert!(copy.exists(), "seed {seed}: it was done");
            }
        }
        equal(&scene.image, &copy).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for path in [&copy, &part(&scene), &ledger(&scene)] {
            let _ = fs::remove_file(path);
        }
        File::open(&scene.there).unwrap().sync_all().unwrap();
    }
    assert!(resumed > 0, "nothing was ever gone on with; {strange} part files without a ledger");
}
