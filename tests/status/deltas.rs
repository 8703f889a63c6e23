//! After a delta that was interrupted.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use super::{MIB, drop, dropped, image, ledger, names, number, only, part};
use crate::ferry;
use crate::scene::{HANG, Scene, says, signal};

/// A copy at the destination, half of which differs from the image now.
fn older(scene: Scene) -> Scene {
    scene.send(&scene.local()).done();
    let source = File::options().write(true).open(&scene.image).unwrap();
    source.write_all_at(&vec![6; 60 << 20], 60 * MIB).unwrap();
    scene
}

/// Interrupted when something was written.
fn interrupted(scene: &Scene, way: &[&str], kill: bool) {
    let slow = ["--limit", "20MiB/s", "--log-interval", "0.1", "--sync-window", "4M"];
    let mut attempt = scene.start(&scene.local().args(way).args(slow));
    attempt.until(|e| e["event"] == "progress" && e["wire_bytes"].as_u64() > Some(10 * MIB));
    if kill {
        signal(scene.receiver(), "KILL")
    } else {
        attempt.signal("INT")
    }
    assert_ne!(attempt.wait().exit, 0);
    scene.no_receiver(HANG);
}

/// The older copy stays as it is, and the folder is as it was.
#[track_caller]
fn drops_to_the_older_copy(scene: &Scene, kind: &str) {
    for kill in [true, false] {
        let (b3, inode) = (images::b3(&image(scene)).unwrap(), image(scene).metadata().unwrap().ino());
        interrupted(scene, &["--delta"], kill);
        let copy = only(&scene.there);
        assert_eq!((&copy["kind"], number(&copy, "image_bytes")), (&kind.into(), 120 * MIB));
        dropped(&image(scene), kind, &[]);
        assert_eq!(names(&scene.there), ["disk.img"]);
        let now = (images::b3(&image(scene)).unwrap(), image(scene).metadata().unwrap().ino());
        assert_eq!(now, (b3, inode));
    }
}

#[test]
fn a_clone() {
    let place = ferry::folder();
    let disk = LoopDisk::new(place.path(), 600 * MIB, Fs::Btrfs, 512).unwrap();
    let scene = older(Scene::new(120 * MIB).to(disk.folder().unwrap()));
    drops_to_the_older_copy(&scene, "clone");
}

#[test]
fn a_new_file_beside_it() {
    let place = ferry::folder();
    let disk = LoopDisk::new(place.path(), 400 * MIB, Fs::Ext4, 512).unwrap();
    let scene = older(Scene::new(120 * MIB).to(disk.folder().unwrap()));
    drops_to_the_older_copy(&scene, "new");
}

/// Dropping it would lose both, so that takes force.
#[test]
fn in_place() {
    for kill in [true, false] {
        let scene = older(Scene::new(120 * MIB));
        interrupted(&scene, &["--delta", "--inplace"], kill);
        let copy = only(&scene.there);
        assert_eq!((&copy["kind"], &copy["running"]), (&"in-place".into(), &false.into()));
        says(copy["next"].as_str().unwrap(), &["--delta --inplace", "finishes it", "--force"]);
        for name in [image(&scene), part(&scene), ledger(&scene)] {
            let reason = drop(&name, &[]).failed(3);
            says(&reason, &["disk.img.vmferry-part", "older copy itself", "--delta", "--force loses both"]);
        }
        assert!(part(&scene).exists() && ledger(&scene).exists());
        let reason = scene.send(&scene.local().args(["--force"])).failed(3);
        says(&reason, &["update in place was interrupted", "vmferry drop", "disk.img --force"]);
        if kill {
            scene.send(&scene.local().args(["--delta", "--inplace"])).done();
            scene.arrived();
        } else {
            dropped(&part(&scene), "in-place", &["--force"]);
            assert_eq!(names(&scene.there), [""; 0]);
        }
    }
}

/// A damaged ledger does not tell any more whether there is another copy.
#[test]
fn in_place_with_a_damaged_ledger() {
    let scene = older(Scene::new(120 * MIB));
    interrupted(&scene, &["--delta", "--inplace"], true);
    File::options().write(true).open(ledger(&scene)).unwrap().write_all_at(&[0xFF; 9], 100).unwrap();
    let copy = only(&scene.there);
    assert_eq!((&copy["kind"], &copy["reason"]), (&"damaged".into(), &"its ledger is damaged".into()));
    says(&drop(&image(&scene), &[]).failed(3), &["may be an older copy", "its ledger is damaged", "--force"]);
    assert!(part(&scene).exists());
    dropped(&image(&scene), "damaged", &["--force"]);
    assert_eq!(names(&scene.there), [""; 0]);
}

/// Killed after its ledger was made, before the older copy lost its name: it is whole.
#[test]
fn in_place_and_not_begun() {
    let scene = older(Scene::new(120 * MIB));
    interrupted(&scene, &["--delta", "--inplace"], true);
    std::fs::rename(part(&scene), image(&scene)).unwrap();
    let b3 = images::b3(&image(&scene)).unwrap();
    let copy = only(&scene.there);
    assert_eq!(copy["kind"], "orphan");
    says(copy["reason"].as_str().unwrap(), &["did not begin", "the image is whole"]);
    dropped(&image(&scene), "orphan", &[]);
    assert_eq!(names(&scene.there), ["disk.img"]);
    assert_eq!(images::b3(&image(&scene)).unwrap(), b3);
    let marks = Command::new("getfattr").arg(image(&scene)).output().unwrap();
    assert!(marks.status.success() && marks.stdout.is_empty(), "no mark is left");
}
