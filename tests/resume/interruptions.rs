//! Whoever is interrupted goes on where it was.

use std::fs;

use super::{MIB, killed_at, ledger, number, part, until_done};
use crate::scene::{Scene, notices, says, signal};

#[test]
fn a_killed_receivers_copy_is_gone_on_with() {
    let scene = Scene::new(96 * MIB + 5000);
    killed_at(&scene, 40 * MIB, &[]);
    let sent = scene.send(&scene.local());
    let done = sent.done();
    says(&notices(&sent).join("\n"), &["durable since an earlier attempt", "not sent again"]);
    let resumed = number(&done, "resumed_bytes");
    assert!(resumed >= 16 * MIB, "{resumed}");
    assert_eq!(number(&done, "data_bytes") + resumed, 96 * MIB + 5000);
    scene.arrived();
}

/// Ctrl-C, SIGTERM at either end: what was done is made durable before the end.
#[test]
fn an_end_in_good_order_loses_nothing() {
    for there in [false, true] {
        let scene = Scene::new(96 * MIB);
        let options = ["--log-interval", "0.1", "--limit", "100MiB/s"];
        let mut attempt = scene.start(&scene.local().args(options));
        until_done(&mut attempt, 30 * MIB);
        if there {
            signal(scene.receiver(), "TERM");
        } else {
            attempt.signal("INT");
        }
        let reason = attempt.wait().failed(6);
        says(&reason, &["run the same command again"]);
        scene.untouched();
        assert!(part(&scene).exists() && ledger(&scene).exists());
        let done = scene.send(&scene.local()).done();
        assert!(number(&done, "resumed_bytes") >= 30 * MIB, "{done}");
        scene.arrived();
    }
}

/// The ledger counts in granules, whatever the chunks of either attempt are.
#[test]
fn another_chunk_size_goes_on_too() {
    for (first, second) in [("4M", "64K"), ("64K", "4M"), ("256K", "1M")] {
        let scene = Scene::new(90 * MIB + 70_000);
        killed_at(&scene, 40 * MIB, &["--chunk", first]);
        let done = scene.send(&scene.local().args(["--chunk", second])).done();
        assert!(number(&done, "resumed_bytes") >= 12 * MIB, "{first} {second}: {done}");
        assert_eq!(number(&done, "data_bytes") + number(&done, "resumed_bytes"), 90 * MIB + 70_000);
        scene.arrived();
    }
}

/// Holes, zeros that were written, data: what was not durable may hold anything, and is made right.
#[test]
fn a_sparse_image_goes_on() {
    let scene = Scene::with(|path| {
        testbed::images::sparse(path, 1 << 30, 80 * MIB, 3).unwrap();
    });
    killed_at(&scene, 700 * MIB, &["--chunk", "256K"]);
    let done = scene.send(&scene.local()).done();
    assert!(number(&done, "resumed_bytes") > 0, "{done}");
    scene.arrived();
    let (ours, theirs) = (&scene.image, scene.there.join("disk.img"));
    let allocated = |path| testbed::images::allocated(path).unwrap();
    assert!(allocated(&theirs) <= allocated(ours) + 4 * MIB, "holes stay holes");
}

/// Images that are in place already are not in the way of the same command.
#[test]
fn of_several_images_the_rest_is_sent() {
    let scene = Scene::new(40 * MIB);
    let second = scene.here.path().join("second.img");
    testbed::images::random(&second, 96 * MIB, 2).unwrap();
    let ferry = || scene.local().arg(&second);
    let options = ["--log-interval", "0.1", "--sync-window", "8M", "--limit", "100MiB/s"];
    let mut attempt = scene.start(&ferry().args(options));
    attempt.until(|e| e["event"] == "committed" && e["image"] == "disk.img");
    until_done(&mut attempt, 80 * MIB);
    signal(scene.receiver(), "KILL");
    attempt.wait().failed(1);
    let inode = |path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let first = inode(scene.there.join("disk.img"));
    let sent = scene.send(&ferry());
    let done = sent.done();
    says(&notices(&sent).join("\n"), &["disk.img is complete since an earlier attempt"]);
    assert!(number(&done, "resumed_bytes") > 48 * MIB, "{done}");
    assert_eq!(done["digests"]["disk.img"]["tree"].as_str().map(str::len), Some(64));
    assert_eq!(inode(scene.there.join("disk.img")), first);
    testbed::images::equal(&second, &scene.there.join("second.img")).unwrap();
    let names: Vec<_> = fs::read_dir(&scene.there).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// With readback everything that is believed durable is read, too.
#[test]
fn readback_reads_what_was_there() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB, &[]);
    let done = scene.send(&scene.local().args(["--verify", "readback", "--chunk", "256K"])).done();
    assert!(number(&done, "resumed_bytes") >= 8 * MIB, "{done}");
    scene.arrived();
}
