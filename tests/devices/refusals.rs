//! Destinations and sources that do not fit, found before the first byte.

use std::fs;
use std::path::Path;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use super::{MIB, is_old, old_disk, send};
use crate::ferry::{Ferry, folder};
use crate::scene::{Attempt, notices, says};

fn image(folder: &Path, size: u64) -> std::path::PathBuf {
    let path = folder.join("disk.img");
    images::random(&path, size, 1).unwrap();
    path
}

#[test]
fn without_force_a_device_is_kept() {
    let folder = folder();
    let image = image(folder.path(), MIB);
    let disk = old_disk(folder.path(), MIB, 512);
    let reason = send(&image, disk.device(), &[]).failed(3);
    says(&reason, &[disk.device().to_str().unwrap(), "is a block device on the destination", "--force"]);
    is_old(&disk);
}

#[test]
fn b1_a_device_that_is_too_small_is_not_touched() {
    let folder = folder();
    for (size, have, sector) in [
        (4 * MIB, 3 * MIB, 512),
        (4 * MIB, 4 * MIB - 512, 512),
        (4 * MIB, 4 * MIB - 4096, 4096),
        (4 * MIB + 1, 4 * MIB, 512),
    ] {
        let image = image(folder.path(), size);
        let disk = old_disk(folder.path(), have, sector);
        for options in [&["--force"][..], &["--force", "--dry-run"]] {
            let reason = send(&image, disk.device(), options).failed(3);
            let device = disk.device().to_str().unwrap();
            says(&reason, &[device, "too small", &have.to_string(), &size.to_string()]);
            is_old(&disk);
        }
    }
    let (large, small) = (old_disk(folder.path(), 2 * MIB, 512), old_disk(folder.path(), MIB, 512));
    says(&send(large.device(), small.device(), &["--force"]).failed(3), &["too small", "1048576", "2097152"]);
    is_old(&small);
}

#[test]
fn a_device_is_named_itself_and_takes_one_image() {
    let folder = folder();
    let disk = old_disk(folder.path(), MIB, 512);
    // An image that happens to be called as a device in the folder that it is sent to.
    let image = folder.path().join(disk.device().file_name().unwrap());
    images::random(&image, MIB, 1).unwrap();
    let reason = send(&image, Path::new("/dev/"), &["--force"]).failed(3);
    says(&reason, &[disk.device().to_str().unwrap(), "is a block device", "name it itself"]);
    let second = folder.path().join("second.img");
    images::random(&second, 4096, 2).unwrap();
    let two = Ferry::local().arg("--force").arg(&image).arg(&second);
    let reason = Attempt::start(two.command(disk.device())).wait().failed(3);
    says(&reason, &[disk.device().to_str().unwrap(), "is not a folder"]);
    is_old(&disk);
}

#[test]
fn f4_the_source_itself_is_no_destination() {
    let folder = folder();
    let disk = old_disk(folder.path(), MIB, 512);
    let reason = send(disk.device(), disk.device(), &["--force"]).failed(3);
    says(&reason, &[disk.device().to_str().unwrap(), "is the source itself"]);
    is_old(&disk);
}

#[test]
fn a8_a_mounted_source_is_torn() {
    let (folder, place) = (folder(), folder());
    let disk = LoopDisk::new(folder.path(), 8 * MIB, Fs::Ext4, 512).unwrap();
    let copy = place.path().join(disk.device().file_name().unwrap());
    let point = disk.folder().unwrap().to_str().unwrap().to_owned();
    let reason = send(disk.device(), place.path(), &[]).failed(3);
    let device = disk.device().to_str().unwrap();
    says(&reason, &[device, "is in use", "mounted on", &point, "torn", "unmount it", "--force"]);
    assert!(!copy.exists());

    let sent = send(disk.device(), place.path(), &["--force"]);
    sent.done();
    let warning = notices(&sent).into_iter().find(|n| n.contains("torn")).unwrap();
    says(&warning, &[device, "mounted on", &point, "--force"]);
    fs::remove_file(&copy).unwrap();

    // One that nobody can write stands still.
    crate::taken::run("mount", &["-o", "remount,ro", &point]);
    send(disk.device(), place.path(), &[]).done();
    // Not as the page cache has it: the file system keeps blocks there that it never writes.
    images::equal(disk.backing(), &copy).unwrap();
}
