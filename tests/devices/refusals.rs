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

/// One disk under several names, on one host: whatever is written through one is written to the other.
#[test]
fn f4_a_source_is_not_written_over_through_another_name() {
    let folder = folder();
    let disk = old_disk(folder.path(), 4 * MIB, 512);
    let (part, _end) = crate::taken::part(&disk, "1", "2048", "2048");
    let backing = disk.backing().to_str().unwrap();
    let again = crate::taken::run("losetup", &["-o", "1048576", "-f", "--show", backing]);
    let _again = crate::taken::until(["losetup", "-d", again.trim()]);
    let node = folder.path().join("node");
    let number = crate::taken::run("stat", &["-c", "0x%t 0x%T", disk.device().to_str().unwrap()]);
    let (major, minor) = number.trim().split_once(' ').unwrap();
    crate::taken::run("mknod", &[node.to_str().unwrap(), "b", major, minor]);
    let before = images::b3(disk.backing()).unwrap();
    for (from, to) in [
        (part.as_path(), disk.device()),
        (disk.backing(), disk.device()),
        (Path::new(again.trim()), disk.device()),
        (node.as_path(), disk.device()),
        (disk.device(), node.as_path()),
    ] {
        for more in [&["--force"][..], &["--force", "--dry-run"]] {
            let reason = send(from, to, more).failed(3);
            says(&reason, &[to.to_str().unwrap(), "another destination"]);
        }
        assert_eq!(images::b3(disk.backing()).unwrap(), before, "{from:?} to {to:?}");
    }
    // Neighbours on one disk are two.
    let (neighbour, _end) = crate::taken::part(&disk, "2", "4096", "2048");
    send(&part, &neighbour, &["--force"]).done();
    images::equal(&part, &neighbour).unwrap();
}

#[test]
fn a_read_only_device_is_found_before_the_first_byte() {
    let folder = folder();
    let image = image(folder.path(), MIB);
    let disk = old_disk(folder.path(), MIB, 512);
    let device = disk.device().to_str().unwrap();
    // The next one that uses the loop device finds it as it was.
    let _end = crate::taken::until(["blockdev", "--setrw", device]);
    crate::taken::run("blockdev", &["--setro", device]);
    for more in [&["--force"][..], &["--force", "--dry-run"]] {
        let reason = send(&image, disk.device(), more).failed(3);
        says(&reason, &[device, "read-only"]);
    }
    is_old(&disk);
}

/// A device's name with a mistake in it is not the name of a file in memory.
#[test]
fn a_mistyped_device_is_no_file() {
    let folder = folder();
    let image = image(folder.path(), MIB);
    for to in ["/dev/vmferry-no-such-device", "/dev/"] {
        for more in [&[][..], &["--force"], &["--dry-run"]] {
            says(&send(&image, Path::new(to), more).failed(3), &["is no block device", "check the name"]);
        }
    }
    assert!(!Path::new("/dev/vmferry-no-such-device").exists() && !Path::new("/dev/disk.img").exists());
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
