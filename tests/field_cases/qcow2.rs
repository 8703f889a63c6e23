//! H3, G7 (a): qcow2 images that are more than their file, or have more in it than one disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ferry::{Ferry, folder};
use crate::scene::{Scene, says};
use crate::watch::tool;
use testbed::images;

const MIB: u64 = 1 << 20;

fn qemu_img(place: &Path, words: &[&str]) -> String {
    tool(Command::new("qemu-img").args(words).current_dir(place))
}

/// Refused with the name of what is missing; sent as it is when the user says so.
fn is_only_a_part(make: impl Fn(&Path), missing: &str) {
    let scene = Scene::with(|image| {
        let place = image.parent().unwrap();
        make(place);
        fs::rename(place.join("disk.qcow2"), image).unwrap();
    });
    let reason = scene.send(&scene.local()).failed(3);
    says(&reason, &["disk.img", missing, "qemu-img convert", "--format raw"]);
    assert!(scene.receivers().is_empty(), "nothing was started");
    scene.untouched();
    scene.send(&scene.local().args(["--format", "raw"])).done();
    scene.arrived();
}

#[test]
fn h3_an_external_data_file_is_not_left_behind() {
    let make = |place: &Path| {
        let options = "data_file=x.raw,data_file_raw=on";
        qemu_img(place, &["create", "-q", "-f", "qcow2", "-o", options, "disk.qcow2", "100M"]);
    };
    is_only_a_part(make, "'x.raw'");
}

/// A header that a guest wrote: the file that it names is neither opened nor sent.
#[test]
fn h3_a_hostile_name_is_only_quoted() {
    let make = |place: &Path| {
        let options = "data_file=x.raw,data_file_raw=on";
        qemu_img(place, &["create", "-q", "-f", "qcow2", "-o", options, "disk.qcow2", "100M"]);
        qemu_img(place, &["amend", "-q", "-f", "qcow2", "-o", "data_file=/etc/passwd", "disk.qcow2"]);
    };
    is_only_a_part(make, "'/etc/passwd'");
}

#[test]
fn an_overlay_is_not_sent_without_its_base_unasked() {
    for version in ["compat=1.1", "compat=0.10"] {
        let make = |place: &Path| {
            qemu_img(place, &["create", "-q", "-f", "raw", "base.img", "8M"]);
            let words = ["-b", "base.img", "-F", "raw", "disk.qcow2"];
            qemu_img(place, &[&["create", "-q", "-f", "qcow2", "-o", version][..], &words[..]].concat());
        };
        is_only_a_part(make, "'base.img'");
    }
}

/// A raw disk on which a guest wrote a header of its own is named, and moves with `--format raw`.
#[test]
fn a_raw_disk_that_looks_like_an_overlay_is_the_users_to_judge() {
    let make = |place: &Path| {
        qemu_img(place, &["create", "-q", "-f", "raw", "base.img", "8M"]);
        qemu_img(place, &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", "header"]);
        images::random(&place.join("disk.qcow2"), 4 * MIB, 5).unwrap();
        let words = ["if=header", "of=disk.qcow2", "conv=notrunc", "status=none"];
        tool(Command::new("dd").args(words).current_dir(place));
    };
    is_only_a_part(make, "'base.img'");
}

#[test]
fn g7_internal_snapshots_arrive() {
    let (from, to) = (folder(), folder());
    let image = from.path().join("disk.qcow2");
    images::qcow2(&image, 64 * MIB, 5 * MIB, 3).unwrap();
    for name in ["s1", "s2"] {
        qemu_img(from.path(), &["snapshot", "-c", name, "disk.qcow2"]);
        let words = ["-f", "qcow2", "-c", "write -P 7 1M 3M", "disk.qcow2"];
        tool(Command::new("qemu-io").args(words).current_dir(from.path()));
    }
    Ferry::local().arg(&image).send(to.path()).done();
    images::equal(&image, &to.path().join("disk.qcow2")).unwrap();
    let listed = qemu_img(to.path(), &["snapshot", "-l", "disk.qcow2"]);
    assert!(listed.contains("s1") && listed.contains("s2"), "{listed}");
    qemu_img(to.path(), &["check", "-q", "disk.qcow2"]);
}
