//! What arrives.

use std::fs;

use testbed::images;

use super::{MIB, WAYS, allocated, copy, inode, number, older, on, on_btrfs, overwrite};
use crate::scene::{Scene, notices, says};

/// A4: the change, and not more, is sent and written; in place the file stays the same one.
#[test]
fn only_what_differs_is_sent() {
    for way in WAYS {
        let scene = older(200 * MIB + 777, |image| overwrite(image, 50 * MIB, MIB, 7));
        let before = inode(&copy(&scene));
        let done = scene.send(&scene.local().args(way)).done();
        assert_eq!(number(&done, "data_bytes"), MIB, "{done}");
        assert_eq!(number(&done, "resumed_bytes"), 199 * MIB + 777, "{done}");
        assert!(number(&done, "wire_bytes") < MIB + MIB / 5, "{done}");
        scene.arrived();
        assert_eq!(inode(&copy(&scene)) == before, way.contains(&"--inplace"));
    }
}

#[test]
fn a_clone_shares_what_is_the_same() {
    let (_place, _disk, scene) = on_btrfs(200 * MIB, 500 * MIB);
    let scene = on(scene.expecting_what_is_there(), |image| overwrite(image, 50 * MIB, MIB, 7));
    // Twice the image would not fit.
    let done = scene.send(&scene.local().args(["--delta"])).done();
    assert_eq!(number(&done, "data_bytes"), MIB, "{done}");
    scene.arrived();
}

/// A4: zeros are punched out of what was allocated.
#[test]
fn what_became_zero_is_freed() {
    for way in WAYS {
        for hole in [true, false] {
            let scene = older(150 * MIB, |image| {
                if hole {
                    let flags =
                        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(image, flags, 20 * MIB, 100 * MIB).unwrap();
                } else {
                    overwrite(image, 20 * MIB, 100 * MIB, 0);
                }
            });
            let before = allocated(&copy(&scene));
            let done = scene.send(&scene.local().args(way)).done();
            assert_eq!(number(&done, "data_bytes"), 0, "{done}");
            scene.arrived();
            assert!(allocated(&copy(&scene)) + 99 * MIB < before);
        }
    }
}

/// Every kind of change at once, in chunks of every size: small writes, holes that are filled, data that
/// becomes a hole within a chunk, at both ends of the image.
#[test]
fn all_kinds_of_changes() {
    for (chunk, way) in
        [("64K", WAYS[0]), ("64K", WAYS[1]), ("1M", WAYS[1]), ("4M", WAYS[0]), ("4M", WAYS[1])]
    {
        let scene = Scene::with(|path| {
            images::sparse(path, 100 * MIB + 5000, 60 * MIB, 5).unwrap();
        });
        let scene = on(scene, |image| {
            for (at, len, byte) in [
                (0, 1, 9),
                (4096, 4096, 0),
                (8 * MIB + 100_000, 200_000, 0),
                (30 * MIB, 3 * MIB, 8),
                (61 * MIB - 5, 10, 3),
                (100 * MIB + 4999, 1, 1),
            ] {
                overwrite(image, at, len, byte);
            }
        });
        scene.send(&scene.local().args(way).args(["--chunk", chunk, "--verify", "readback"])).done();
        scene.arrived();
    }
}

/// B7: the destination grows first.
#[test]
fn an_image_that_grew() {
    for way in WAYS {
        let scene = older(100 * MIB + 123, |image| {
            image.set_len(150 * MIB).unwrap();
            overwrite(image, 120 * MIB, MIB, 5);
        });
        let done = scene.send(&scene.local().args(way)).done();
        assert!(number(&done, "data_bytes") <= 3 * MIB, "{done}");
        scene.arrived();
    }
}

#[test]
fn nothing_differs() {
    for way in WAYS {
        let scene = older(64 * MIB, |_| ());
        let done = scene.send(&scene.local().args(way)).done();
        assert_eq!(number(&done, "data_bytes"), 0, "{done}");
        assert_eq!(
            done["digests"]["disk.img"]["b3"].as_str(),
            Some(images::b3(&scene.image).unwrap().as_str())
        );
        scene.arrived();
    }
}

#[test]
fn there_is_no_older_copy() {
    let scene = Scene::new(10 * MIB);
    let sent = scene.send(&scene.local().args(["--delta"]));
    sent.done();
    says(&notices(&sent).join("\n"), &["there is no older copy"]);
    scene.arrived();
}

/// Of several images each has its own older copy, or none.
#[test]
fn several_images() {
    let scene = older(40 * MIB, |image| overwrite(image, 0, 10, 1));
    let second = scene.here.path().join("second.img");
    images::random(&second, 20 * MIB, 4).unwrap();
    let done = scene.send(&scene.local().arg(&second).args(["--delta"])).done();
    assert_eq!(number(&done, "data_bytes"), 21 * MIB, "{done}");
    images::equal(&second, &scene.there.join("second.img")).unwrap();
    fs::remove_file(scene.there.join("second.img")).unwrap();
    scene.arrived();
}

/// A device has no older copy beside it: it is compared in place.
#[test]
fn a_device() {
    use testbed::disk::{Fs, LoopDisk};
    let place = crate::ferry::folder();
    let disk = LoopDisk::new(place.path(), 64 * MIB, Fs::None, 512).unwrap();
    let scene = Scene::new(60 * MIB + 512);
    let send = |more: &[&str]| {
        let ferry = scene.local().args(["--force"]).args(more);
        crate::scene::Attempt::start(ferry.command(disk.device())).wait().done()
    };
    send(&[]);
    super::changed(&scene.image, |image| overwrite(image, 7 * MIB + 5, 10, 1));
    assert_eq!(number(&send(&["--delta"]), "data_bytes"), MIB);
    let image = fs::read(&scene.image).unwrap();
    assert!(fs::read(disk.backing()).unwrap()[..image.len()] == image[..]);
}
