//! Reference images: the same every time, compared to the byte.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::images::{
    Difference, allocated, b3, dirty, equal, equal_data, filesystem, qcow2, qcow2_overlay, random, sparse,
};

const MIB: u64 = 1 << 20;

#[test]
fn random_images_are_reproducible_and_differ_by_seed() {
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
    let size = 9 * MIB + 777;
    random(&a, size, 1).expect("writes");
    random(&b, size, 1).expect("writes");
    random(&c, size, 2).expect("writes");
    equal(&a, &b).expect("are equal");
    assert_eq!(b3(&a).expect("hashes"), b3(&b).expect("hashes"));
    assert_ne!(b3(&a).expect("hashes"), b3(&c).expect("hashes"));
    assert_eq!(equal(&a, &c).expect_err("differ").offset(), Some(0));
}

#[test]
fn compare_names_the_first_byte_that_differs_and_the_sizes() {
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    dirty(&a, 9 * MIB, 0xaa).expect("writes");
    dirty(&b, 9 * MIB, 0xaa).expect("writes");
    let file = OpenOptions::new().write(true).open(&b).expect("opens");
    for offset in [8 * MIB + 12_345, 9 * MIB - 1] {
        file.write_all_at(&[0xab], offset).expect("writes");
    }
    assert_eq!(equal(&a, &b).expect_err("differ").offset(), Some(8 * MIB + 12_345));
    file.set_len(9 * MIB + 1).expect("grows");
    let difference = equal(&a, &b).expect_err("differ");
    assert!(matches!(difference, Difference::Size { .. }), "{difference}");
    let missing = equal(&a, &folder.path().join("missing")).expect_err("fails");
    assert!(matches!(missing, Difference::Unreadable(_)), "{missing}");
}

#[test]
fn sparse_images_hold_the_data_they_say_and_holes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sparse");
    let extents = sparse(&path, 256 * MIB, 32 * MIB, 5).expect("writes");
    let taken = allocated(&path).expect("metadata");
    assert!((32 * MIB..40 * MIB).contains(&taken), "{taken}");
    let file = File::open(&path).expect("opens");
    for extent in &extents {
        let mut found = vec![0; 4096];
        let mut expected = vec![0; 4096];
        file.read_exact_at(&mut found, extent.start).expect("reads");
        testbed::images::content::fill(5, extent.start, &mut expected);
        assert_eq!(found, expected);
        file.read_at(&mut found, extent.end).expect("reads");
        assert!(extent.end == 256 * MIB || found.iter().all(|byte| *byte == 0));
    }
}

/// Also where one has data and the other a hole, and behind everything that either has.
#[test]
fn what_is_a_hole_in_both_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    for path in [&a, &b] {
        sparse(path, 8 << 40, 4 * MIB, 1).expect("writes");
    }
    equal_data(&a, &b).expect("are equal");
    let file = File::options().write(true).open(&b).expect("opens");
    for (offset, byte) in [(7 << 40, 0), ((8 << 40) - 1, 1)] {
        file.write_all_at(&[byte], offset).expect("writes");
        let found = equal_data(&a, &b).err().and_then(|difference| difference.offset());
        assert_eq!(found, (byte != 0).then_some(offset));
    }
}

#[test]
fn qcow2_images_hold_what_the_raw_ones_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let [raw, image, top, flat] =
        ["raw", "image.qcow2", "top.qcow2", "flat"].map(|name| folder.path().join(name));
    sparse(&raw, 64 * MIB, 8 * MIB, 3).expect("writes");
    qcow2(&image, 64 * MIB, 8 * MIB, 3).expect("converts");
    qcow2_overlay(&top, &image, "qcow2").expect("creates");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-O", "raw"]).args([&top, &flat]);
    assert!(convert.status().expect("runs").success());
    equal(&raw, &flat).expect("are equal");
    assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 4);
}

#[test]
fn a_file_system_image_is_sound_and_filled() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fs.img");
    // Files of our own: what lies in the system's folders differs from machine to machine.
    let files = folder.path().join("files");
    std::fs::create_dir(&files).expect("a folder");
    (0..40).for_each(|i| random(&files.join(format!("{i}")), MIB, i).expect("writes"));
    filesystem(&path, 64 * MIB, &files).expect("is made");
    let check = Command::new("e2fsck").args(["-fn"]).arg(&path).output().expect("runs");
    assert!(check.status.success(), "{check:?}");
    assert!(allocated(&path).expect("metadata") > 16 * MIB);
}

#[test]
fn a_device_is_made_dirty_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = LoopDisk::new(folder.path(), 4 * MIB, Fs::None, 512).expect("a disk");
    dirty(disk.device(), 4 * MIB, 0xaa).expect("writes");
    let file = folder.path().join("file");
    dirty(&file, 4 * MIB, 0xaa).expect("writes");
    equal(disk.device(), &file).expect("are equal");
}
