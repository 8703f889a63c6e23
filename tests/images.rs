//! What arrives is what was sent: sizes, holes, formats, several at once, options that only change
//! the way.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ferry::{Ferry, Sent};
use scene::{Attempt, hurry, slow_link};
use serde_json::Value;
use testbed::images;

const MIB: u64 = 1 << 20;

/// Factor for the large images: 1 fits into CI, 16 makes the full check (4 GiB random, 8 GiB
/// sparse with 2 GiB of data).
fn scale() -> u64 {
    std::env::var("VMFERRY_TEST_SCALE").map_or(1, |text| text.parse().unwrap())
}

fn tool(program: &str, args: &[&OsStr]) {
    let output = Command::new(program).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&said));
}

fn qemu_img_compares(format: &str, a: &Path, b: &Path) {
    let words = ["compare", "-f", format, "-F", format].map(OsStr::new);
    tool("qemu-img", &[&words[..], &[a.as_os_str(), b.as_os_str()]].concat());
}

/// What holds of every copy, whatever the way to compare its bytes.
#[track_caller]
fn same_shape(source: &Path, target: &Path) {
    let (from, to) = (fs::metadata(source).unwrap(), fs::metadata(target).unwrap());
    assert_eq!(to.len(), from.len(), "size of {}", target.display());
    assert_eq!(to.permissions().mode(), from.permissions().mode(), "mode of {}", target.display());
    let (from, to) = (images::allocated(source).unwrap(), images::allocated(target).unwrap());
    assert!(to <= from + from / 100 + MIB, "{} takes {to} bytes, its source {from}", target.display());
}

/// The target of one image is its equal in every respect, and the printed digest is b3sum's.
#[track_caller]
fn arrived(done: &Value, source: &Path, target: &Path) {
    images::equal(source, target).unwrap();
    same_shape(source, target);
    if done["images"] == 1 {
        // Zeros that were written at the source take no space either.
        let (data, takes) = (done["data_bytes"].as_u64().unwrap(), images::allocated(target).unwrap());
        assert!(takes <= data + data / 100 + MIB, "{} takes {takes} bytes for {data}", target.display());
    }
    let name = source.file_name().unwrap().to_str().unwrap();
    assert_eq!(done["digests"][name]["b3"], images::b3(source).unwrap(), "b3 of {name}");
}

/// Sends one image to a new place and checks the copy.
fn send(image: &Path) -> Value {
    let place = ferry::folder();
    // A mode that nothing makes by default.
    fs::set_permissions(image, Permissions::from_mode(0o640)).unwrap();
    let done = Ferry::local().arg(image).send(place.path()).done();
    arrived(&done, image, &place.path().join(image.file_name().unwrap()));
    done
}

#[test]
fn random_dense() {
    let place = ferry::folder();
    let (image, size) = (place.path().join("disk.img"), 256 * MIB * scale());
    images::random(&image, size, 1).unwrap();
    let done = send(&image);
    assert_eq!((&done["data_bytes"], &done["image_bytes"]), (&size.into(), &size.into()));
}

#[test]
fn scattered_sparse() {
    let place = ferry::folder();
    let (image, data) = (place.path().join("disk.img"), 128 * MIB * scale());
    images::sparse(&image, 4 * data, data, 2).unwrap();
    let done = send(&image);
    assert_eq!(done["data_bytes"], data);
    let wire = done["wire_bytes"].as_u64().unwrap();
    assert!(wire < data + data / 50, "{wire} bytes on the wire for {data} of data");
}

#[test]
fn qcow2() {
    let place = ferry::folder();
    let image = place.path().join("disk.qcow2");
    images::qcow2(&image, 1 << 30, 96 * MIB, 3).unwrap();
    let target = place.path().join("copy.qcow2");
    let done = Ferry::local().arg(&image).send(&target).done();
    arrived(&done, &image, &target);
    qemu_img_compares("qcow2", &image, &target);
    tool(
        "qemu-img",
        &["check", "-q"].map(OsStr::new).into_iter().chain([target.as_os_str()]).collect::<Vec<_>>(),
    );
}

#[test]
fn a5_qcow2_with_preallocated_metadata_stays_thin() {
    let place = ferry::folder();
    let (image, target) = (place.path().join("disk.qcow2"), place.path().join("copy.qcow2"));
    let words = ["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata"].map(OsStr::new);
    tool("qemu-img", &[&words[..], &[image.as_os_str(), OsStr::new("10G")]].concat());
    let writes = (0..50u64).flat_map(|i| ["-c".into(), format!("write -q -P {} {}M 1M", i + 1, i * 200)]);
    let words: Vec<_> = ["-f".into(), "qcow2".into()].into_iter().chain(writes).collect();
    tool("qemu-io", &words.iter().map(OsStr::new).chain([image.as_os_str()]).collect::<Vec<_>>());
    assert!(fs::metadata(&image).unwrap().len() > 10 << 30, "its clusters have their places");

    let done = Ferry::local().arg(&image).send(&target).done();
    same_shape(&image, &target);
    // By their extents: ten GiB of holes need not be read.
    qemu_img_compares("raw", &image, &target);
    qemu_img_compares("qcow2", &image, &target);
    let wire = done["wire_bytes"].as_u64().unwrap();
    assert!(wire < 60 * MIB, "{wire} bytes on the wire");
}

#[test]
fn a5_a_terabyte_of_hole_costs_nothing() {
    let place = ferry::folder();
    let (image, target) = (place.path().join("disk.img"), place.path().join("copy.img"));
    images::sparse(&image, 1 << 40, 10 * MIB, 4).unwrap();
    let done = Ferry::local().arg(&image).send(&target).done();
    same_shape(&image, &target);
    qemu_img_compares("raw", &image, &target);
    assert_eq!((&done["image_bytes"], &done["data_bytes"]), (&(1u64 << 40).into(), &(10 * MIB).into()));
    let wire = done["wire_bytes"].as_u64().unwrap();
    assert!(wire < 12 * MIB, "{wire} bytes on the wire");
    let digests = &done["digests"]["disk.img"];
    assert_eq!(digests["b3"], Value::Null, "hashing a TiB of zeros is not for free");
    assert!(digests["tree"].as_str().is_some_and(|hex| hex.len() == 64), "{digests}");
}

#[test]
fn every_size() {
    for size in [0, 1, 511, 512, 513, 4095, 4097, MIB - 1, MIB + 1, 123_456_789] {
        let place = ferry::folder();
        let image = place.path().join(format!("{size}.img"));
        images::random(&image, size, size).unwrap();
        let done = send(&image);
        assert_eq!(done["data_bytes"], size);
    }
}

#[test]
fn several_images_into_one_folder() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let path = |name: &str| from.path().join(name);
    images::random(&path("dense.img"), 33 * MIB + 7, 5).unwrap();
    images::sparse(&path("sparse.img"), 200 * MIB, 20 * MIB, 6).unwrap();
    images::qcow2(&path("disk.qcow2"), 100 * MIB, 10 * MIB, 7).unwrap();
    images::random(&path("a name with spaces and 'quotes'"), 5000, 8).unwrap();
    images::random(&path("empty.img"), 0, 9).unwrap();
    File::create(path("hole.img")).unwrap().set_len(50 * MIB).unwrap();
    let all: Vec<PathBuf> = fs::read_dir(from.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(all.len(), 6);

    let done = Ferry::local().args(&all).send(to.path()).done();
    assert_eq!(done["images"], all.len());
    assert_eq!(done["digests"].as_object().unwrap().len(), all.len());
    let there: BTreeSet<PathBuf> =
        fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(there, all.iter().map(|path| to.path().join(path.file_name().unwrap())).collect());
    for (image, target) in all.iter().map(|path| (path, to.path().join(path.file_name().unwrap()))) {
        arrived(&done, image, &target);
    }
}

/// Dense stretches, holes, written zeros within data, and an odd end.
fn mixed(image: &Path) {
    images::sparse(image, 64 * MIB + 12_345, 24 * MIB, 10).unwrap();
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let mut dense = vec![0; 9 << 20];
    images::content::fill(11, 0, &mut dense);
    file.write_all_at(&dense, 20 * MIB).unwrap();
    for (at, len) in [(21 * MIB + 4096, 4096), (23 * MIB, 3 << 20), (40 * MIB + 512, 100_000)] {
        file.write_all_at(&vec![0; len], at).unwrap();
    }
    file.write_all_at(&[1], 64 * MIB + 12_344).unwrap();
}

#[test]
fn every_chunk_size_gives_the_same_image_and_digests() {
    let place = ferry::folder();
    let image = place.path().join("disk.img");
    mixed(&image);
    let mut digests = BTreeSet::new();
    for chunk in ["64K", "128K", "256K", "512K", "1M", "2M", "4M"] {
        let target = place.path().join(chunk);
        let done = Ferry::local().args(["--chunk", chunk]).arg(&image).send(&target).done();
        arrived(&done, &image, &target);
        digests.insert(done["digests"].to_string());
    }
    assert_eq!(digests.len(), 1, "{digests:?}");
}

#[test]
fn every_engine_gives_the_same_image_and_digests() {
    let place = ferry::folder();
    let image = place.path().join("disk.img");
    mixed(&image);
    let mut digests = BTreeSet::new();
    for (name, words, engine) in [
        ("uring", &["--engine", "uring"][..], "uring"),
        ("sync", &["--engine", "sync"], "sync"),
        ("cached", &["--no-direct"], "uring"),
        ("sync and cached", &["--engine", "sync", "--no-direct"], "sync"),
    ] {
        let target = place.path().join(name);
        let done = Ferry::local().args(words).arg(&image).send(&target).done();
        assert_eq!(done["engine"], engine, "{name}");
        arrived(&done, &image, &target);
        digests.insert(done["digests"].to_string());
    }
    assert_eq!(digests.len(), 1, "{digests:?}");
}

#[test]
fn zeros_and_holes_have_one_digest() {
    let place = ferry::folder();
    let (zeros, hole) = (place.path().join("zeros.img"), place.path().join("hole.img"));
    mixed(&zeros);
    // What cp finds to be zero becomes a hole.
    let words = ["--sparse=always", "--reflink=never"].map(OsStr::new);
    tool("cp", &[&words[..], &[zeros.as_os_str(), hole.as_os_str()]].concat());
    assert!(images::allocated(&hole).unwrap() < images::allocated(&zeros).unwrap());
    let done = Ferry::local().args([&zeros, &hole]).send(ferry::folder().path()).done();
    assert_eq!(done["digests"]["zeros.img"], done["digests"]["hole.img"]);
}

/// An image like that of case A1, and a file full of 0xAA to be replaced.
fn a1(place: &Path) -> (PathBuf, PathBuf) {
    let (image, target) = (place.join("disk.img"), place.join("old.img"));
    let mut content = vec![0; 1 << 20];
    images::content::fill(12, 0, &mut content);
    let file = File::create(&image).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.write_all_at(&content, 50 * MIB).unwrap();
    file.write_all_at(&[0; 4096], 30 * MIB).unwrap();
    images::dirty(&target, 64 * MIB + 4096, 0xAA).unwrap();
    (image, target)
}

#[track_caller]
fn all_0xaa(file: &File) {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.len() > 64 << 20 && bytes.iter().all(|byte| *byte == 0xAA));
}

#[test]
fn a1_zeros_replace_what_was_there() {
    let place = ferry::folder();
    let (image, target) = a1(place.path());
    let old = File::open(&target).unwrap();
    let replace = || Ferry::local().arg("--force").arg(&image).send(&target).done();
    arrived(&replace(), &image, &target);
    all_0xaa(&old);

    // Data becomes zero, once written and once punched.
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    arrived(&replace(), &image, &target);
    let words = ["-p", "-o", "50M", "-l", "1M"].map(OsStr::new);
    tool("fallocate", &[&words[..], &[image.as_os_str()]].concat());
    let done = replace();
    arrived(&done, &image, &target);
    assert_eq!(done["data_bytes"], 0);
}

#[test]
fn a1_the_old_image_keeps_its_name_until_the_copy_is_complete() {
    let (link, place) = (slow_link(), ferry::folder());
    let (image, target) = a1(place.path());
    images::random(&image, 16 * MIB, 13).unwrap();
    let ferry = Ferry::over(&link).args(["--force", "--log-interval", "0.1"]).arg(&image);
    let mut attempt = Attempt::start(ferry.command(&target));
    attempt.until_copying();
    all_0xaa(&File::open(&target).unwrap());
    let parts = fs::read_dir(place.path()).unwrap().count() - 2;
    assert_eq!(parts, 1, "it was still being copied");
    hurry(&link);
    arrived(&attempt.wait().done(), &image, &target);
}

#[test]
fn a1_without_force_nothing_is_replaced() {
    let place = ferry::folder();
    let (image, target) = a1(place.path());
    let sent: Sent = Ferry::local().arg(&image).send(&target);
    assert!(sent.failed(3).contains("--force"));
    all_0xaa(&File::open(&target).unwrap());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing is left beside it");
}
