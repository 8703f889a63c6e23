//! What is no basis for a delta, and is left as it is.

use std::fs;

use testbed::images;

use super::{MIB, WAYS, copy, older, overwrite};
use crate::scene::says;

/// B7
#[test]
fn an_image_that_shrank() {
    for way in WAYS {
        let scene = older(100 * MIB, |image| image.set_len(80 * MIB).unwrap());
        let b3 = images::b3(&copy(&scene)).unwrap();
        let reason = scene.send(&scene.local().args(way)).failed(3);
        says(&reason, &[&(100 * MIB).to_string(), &(80 * MIB).to_string(), "--force without --delta"]);
        assert_eq!(images::b3(&copy(&scene)).unwrap(), b3);
    }
}

#[test]
fn one_that_has_other_names_is_not_changed_in_place() {
    let scene = older(10 * MIB, |image| overwrite(image, 0, 10, 1));
    fs::hard_link(copy(&scene), scene.there.join("other.img")).unwrap();
    let reason = scene.send(&scene.local().args(WAYS[1])).failed(3);
    says(&reason, &["hard links"]);
    scene.send(&scene.local().args(WAYS[0])).done();
    images::equal(&scene.image, &copy(&scene)).unwrap();
    assert!(images::equal(&scene.image, &scene.there.join("other.img")).is_err());
}

#[test]
fn one_that_somebody_uses() {
    for way in WAYS {
        let scene = older(10 * MIB, |image| overwrite(image, 0, 10, 1));
        let _open = fs::File::options().append(true).open(copy(&scene)).unwrap();
        says(&scene.send(&scene.local().args(way)).failed(3), &["in use by"]);
    }
}

/// No clones, no room for a second one: in place needs none.
#[test]
fn no_room_for_another_one() {
    use testbed::disk::{Fs, LoopDisk};
    let place = crate::ferry::folder();
    let disk = LoopDisk::new(place.path(), 100 * MIB, Fs::Ext4, 512).unwrap();
    let scene = crate::scene::Scene::new(60 * MIB).to(disk.folder().unwrap());
    let scene = super::on(scene, |image| overwrite(image, 0, 10, 1));
    let reason = scene.send(&scene.local().args(WAYS[0])).failed(3);
    says(&reason, &["not enough room", "--inplace needs no room"]);
    scene.send(&scene.local().args(WAYS[1])).done();
    scene.arrived();
}
