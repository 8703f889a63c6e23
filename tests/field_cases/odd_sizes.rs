//! B2: sizes that are no multiple of a sector arrive exact to the byte, with O_DIRECT and without.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use testbed::faults::{DirectIo, FaultFs, Faults};
use testbed::images;

use crate::ferry::folder;
use crate::scene::{Scene, fault_fs};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 8] = [0, 1, 511, 513, MIB - 1, MIB + 1, 3 * MIB + 4095, 12_345_679];

#[test]
fn b2_odd_sizes_arrive_exact_to_the_byte() {
    for size in SIZES {
        let scene = Scene::new(size);
        scene.send(&scene.local()).done();
        scene.arrived();
    }
}

fn without_direct_io(place: &Path) -> FaultFs {
    fault_fs(place, Faults { direct: DirectIo::RefusedAtOpen, ..Faults::default() })
}

#[test]
fn b2_odd_sizes_without_direct_io_arrive_exact_to_the_byte() {
    for size in SIZES {
        let [from, to] = [folder(), folder()];
        let (source, target) = (without_direct_io(from.path()), without_direct_io(to.path()));
        let image = source.path().join("disk.img");
        images::random(&image, size, 2).unwrap();
        let scene =
            Scene::with(|path| assert_eq!(std::fs::copy(&image, path).unwrap(), size)).to(target.path());
        scene.send(&scene.local_as(&image)).done();
        scene.arrived();
    }
}

#[test]
fn b2_a_qcow2_of_odd_length_arrives_exact_to_the_byte() {
    let scene = Scene::with(|path| {
        images::qcow2(path, 64 * MIB, 5 * MIB, 3).unwrap();
        File::options().append(true).open(path).unwrap().write_all(&[0xaa; 777]).unwrap();
        assert!(!path.metadata().unwrap().len().is_multiple_of(512));
    });
    scene.send(&scene.local()).done();
    scene.arrived();
}
