//! What arrives on a device, or from one, is what was sent.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use super::{MIB, content, holds, is_old, old_disk, patchwork, punch, send};
use crate::ferry::folder;
use crate::scene::{notices, says};
use crate::taken::run;

/// Both engines, past the page cache and through it.
const WAYS: [&[&str]; 4] = [
    &["--force", "--engine", "uring"],
    &["--force", "--engine", "sync"],
    &["--force", "--engine", "uring", "--no-direct"],
    &["--force", "--engine", "sync", "--no-direct"],
];

/// There and back with one sector size. The image ends inside a sector, and the device is larger.
fn there_and_back(sector: u32) {
    let folder = folder();
    let (image, size) = (folder.path().join("disk.img"), 12 * MIB + 345);
    patchwork(&image, size);
    for way in WAYS {
        let disk = old_disk(folder.path(), 16 * MIB, sector);
        let sent = send(&image, disk.device(), way);
        let done = sent.done();
        assert_eq!(done["digests"]["disk.img"]["b3"], images::b3(&image).unwrap());
        holds(&disk, &image);

        let back = folder.path().join("back.img");
        let done = send(disk.device(), &back, &way[1..]).done();
        images::equal(disk.device(), &back).unwrap();
        let (data, takes) = (done["data_bytes"].as_u64().unwrap(), images::allocated(&back).unwrap());
        assert!(data < 16 * MIB - 5 * MIB, "zeros were sent: {data} bytes");
        assert!(takes <= data + MIB, "zeros take space: {takes} bytes");
        fs::remove_file(&back).unwrap();
    }
}

#[test]
fn a1_sectors_of_512_bytes() {
    there_and_back(512);
}

#[test]
fn a1_sectors_of_2048_bytes() {
    there_and_back(2048);
}

#[test]
fn a1_sectors_of_4096_bytes() {
    there_and_back(4096);
}

/// Only zeros, in every form: nothing travels, and nothing of what was there is left.
#[test]
fn a1_zeros_are_written_over_what_was_there() {
    let folder = folder();
    let image = folder.path().join("zeros.img");
    for (written, size) in [(false, 16 * MIB), (false, 9 * MIB + 100), (true, 5 * MIB + 1), (false, 100)] {
        let file = File::create(&image).unwrap();
        file.set_len(size).unwrap();
        if written {
            file.write_all_at(&vec![0; usize::try_from(size).unwrap()], 0).unwrap();
        }
        for way in WAYS {
            let disk = old_disk(folder.path(), 16 * MIB, 4096);
            assert_eq!(send(&image, disk.device(), way).done()["data_bytes"], 0);
            holds(&disk, &image);
        }
    }
}

/// The last sector is shared by the image and what was there before.
#[test]
fn b2_the_last_sector_keeps_what_is_not_the_images() {
    let folder = folder();
    let image = folder.path().join("odd.img");
    for (size, hole) in [(123_456_789, 0), (4096 * 5 + 1, 0), (MIB + 4095, 3000), (513, 0), (1, 0)] {
        if size > 100 * MIB {
            images::sparse(&image, size, 8 * MIB, 5).unwrap();
        } else {
            images::random(&image, size, 5).unwrap();
        }
        if hole > 0 {
            punch(&image, size - hole, hole);
        }
        for way in &WAYS[..2] {
            let disk = old_disk(folder.path(), size.next_multiple_of(4096), 4096);
            send(&image, disk.device(), way).done();
            holds(&disk, &image);
        }
    }
}

#[test]
fn b5_device_to_device_and_a_warning_about_other_sectors() {
    let folder = folder();
    for (from, to) in [(512, 4096), (4096, 512), (4096, 2048), (512, 512)] {
        let source = LoopDisk::new(folder.path(), 12 * MIB, Fs::None, from).unwrap();
        patchwork_on(&source, 12 * MIB);
        let target = old_disk(folder.path(), 14 * MIB, to);
        let sent = send(source.device(), target.device(), &["--force"]);
        sent.done();
        holds(&target, source.device());
        let warned: Vec<_> = notices(&sent).into_iter().filter(|n| n.contains("partition table")).collect();
        match &warned[..] {
            [] => assert_eq!(from, to),
            [warning] => says(
                warning,
                &[
                    source.device().to_str().unwrap().trim_start_matches("/dev/"),
                    &format!("sectors of {from} bytes"),
                    target.device().to_str().unwrap(),
                    &format!("of {to}"),
                ],
            ),
            more => panic!("one warning: {more:?}"),
        }
    }
}

fn patchwork_on(disk: &LoopDisk, size: u64) {
    let image = disk.backing().with_extension("img");
    patchwork(&image, size);
    fs::copy(&image, disk.device()).unwrap();
    fs::remove_file(&image).unwrap();
}

#[test]
fn a9_b6_what_lies_past_the_image_is_named() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, 2 * MIB, 1).unwrap();
    let disk = old_disk(folder.path(), 2 * MIB + 512, 512);
    let sent = send(&image, disk.device(), &["--force"]);
    sent.done();
    holds(&disk, &image);
    let note = notices(&sent).into_iter().find(|n| n.contains("larger")).unwrap();
    says(&note, &[disk.device().to_str().unwrap(), "its last 512 bytes stay as they are", "sgdisk -e"]);

    let disk = old_disk(folder.path(), 2 * MIB, 512);
    let sent = send(&image, disk.device(), &["--force"]);
    sent.done();
    holds(&disk, &image);
    assert!(!notices(&sent).iter().any(|n| n.contains("larger")), "{:?}", notices(&sent));
}

/// What was cached before the copy is not what is read after it.
#[test]
fn a7_a_reader_through_the_page_cache_sees_the_copy() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    patchwork(&image, 12 * MIB);
    for way in WAYS {
        let disk = old_disk(folder.path(), 12 * MIB, 512);
        // Open all the time: with its last user a device's pages go anyway.
        let reader = File::open(disk.device()).unwrap();
        is_old(&disk);
        send(&image, disk.device(), way).done();
        holds(&disk, &image);
        drop(reader);
    }
}

#[test]
fn a_node_keeps_its_mode_and_owner_and_links_to_it_are_followed() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, MIB, 1).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&image, Some(1234), Some(1234)).unwrap();
    let disk = old_disk(folder.path(), MIB, 512);
    let link = folder.path().join("by-id");
    symlink(disk.device(), &link).unwrap();
    let node = || fs::metadata(disk.device()).map(|m| (m.mode(), m.uid(), m.gid())).unwrap();
    let before = node();
    send(&image, &link, &["--force"]).done();
    assert_eq!(node(), before);
    assert!(link.is_symlink());
    holds(&disk, &image);
}

#[test]
fn a_folder_gets_a_file_of_the_devices_name() {
    let (folder, place) = (folder(), folder());
    let disk = old_disk(folder.path(), 3 * MIB, 512);
    send(disk.device(), place.path(), &[]).done();
    let copy = place.path().join(disk.device().file_name().unwrap());
    images::equal(disk.device(), &copy).unwrap();
    let made = fs::metadata(&copy).unwrap();
    let us = folder.path().metadata().unwrap().uid();
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o600, us));
    assert_eq!(content(&copy).len() as u64, 3 * MIB);
}

/// What is on a device is never taken for a format: a guest may have written it.
#[test]
fn h3_a_device_is_raw_bytes() {
    let (folder, place) = (folder(), folder());
    let (overlay, data) = (folder.path().join("a.qcow2"), folder.path().join("x.raw"));
    let options = format!("data_file={},data_file_raw=on", data.display());
    let overlay_name = overlay.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, overlay_name, "8M"]);
    says(&send(&overlay, place.path(), &[]).failed(3), &["keeps its data in"]);
    let disk = old_disk(folder.path(), MIB, 512);
    send(&overlay, disk.device(), &["--force", "--format", "raw"]).done();
    holds(&disk, &overlay);
    let copy = place.path().join("copy");
    send(disk.device(), &copy, &[]).done();
    images::equal(disk.device(), &copy).unwrap();
}

#[test]
fn a_dry_run_changes_nothing() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, MIB, 1).unwrap();
    let disk = old_disk(folder.path(), MIB + 4096, 4096);
    let sent = send(&image, disk.device(), &["--force", "--dry-run"]);
    assert_eq!(sent.exit, 0, "{}", sent.stderr);
    is_old(&disk);
    // What would be told is told.
    assert!(notices(&sent).iter().any(|n| n.contains("larger")), "{:?}", notices(&sent));
}

/// Also where the image ends within a sector.
#[test]
fn a7_a_device_is_read_back() {
    for sector in [512, 4096] {
        let place = folder();
        let image = place.path().join("disk.img");
        patchwork(&image, 13 * MIB + 513);
        let disk = old_disk(place.path(), 16 * MIB, sector);
        for words in [&["--force"][..], &["--force", "--transport", "tcp", "--chunk", "64K"]] {
            send(&image, disk.device(), &[words, &["--verify", "readback"]].concat()).done();
            holds(&disk, &image);
        }
    }
}
