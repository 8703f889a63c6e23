//! Devices that somebody uses: refused even with --force, and whoever it is named.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use super::{MIB, holds, is_old, old_disk, send};
use crate::ferry::folder;
use crate::scene::says;

/// Runs a tool of the system.
#[track_caller]
pub fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}: run `make deps`"));
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A state of the system that ends with the test.
pub struct Until(Vec<String>);

impl Drop for Until {
    fn drop(&mut self) {
        // A test that failed early may have ended it already.
        let _ = Command::new(&self.0[0]).args(&self.0[1..]).status();
    }
}

pub fn until<const N: usize>(words: [&str; N]) -> Until {
    Until(words.map(str::to_owned).to_vec())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Sent to the device by force, it is refused with these words.
#[track_caller]
fn refused(device: &Path, words: &[&str]) {
    let folder = folder();
    let image = folder.path().join("disk.img");
    images::random(&image, MIB, 1).unwrap();
    for options in [&["--force"][..], &["--force", "--dry-run"], &["--force", "--no-direct"]] {
        let reason = send(&image, device, options).failed(3);
        says(&reason, &[&[text(device), "is in use by", "--force does not help"], words].concat());
    }
}

#[test]
fn a_mounted_device() {
    let folder = folder();
    let mut disk = LoopDisk::new(folder.path(), 8 * MIB, Fs::Ext4, 512).unwrap();
    let file = disk.folder().unwrap().join("precious");
    fs::write(&file, "kept").unwrap();
    refused(disk.device(), &["mounted on", text(disk.folder().unwrap())]);
    run("mount", &["-o", "remount,ro", text(disk.folder().unwrap())]);
    refused(disk.device(), &["mounted on", text(disk.folder().unwrap())]);
    disk.remount().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

/// A partition that the kernel was told of, 7 MiB from the first MiB on.
fn partition(disk: &LoopDisk) -> (PathBuf, Until) {
    part(disk, "1", "2048", "14336")
}

/// Partition `number` from sector `start` on, with so many sectors of 512 bytes.
pub fn part(disk: &LoopDisk, number: &str, start: &str, sectors: &str) -> (PathBuf, Until) {
    // Partitions outlive the loop device's file: one of a run that was killed may be there still.
    let _ = Command::new("delpart").args([text(disk.device()), number]).stderr(Stdio::null()).status();
    run("addpart", &[text(disk.device()), number, start, sectors]);
    let end = until(["delpart", text(disk.device()), number]);
    (PathBuf::from(format!("{}p{number}", text(disk.device()))), end)
}

#[test]
fn a_partition_mounted() {
    let folder = folder();
    let disk = old_disk(folder.path(), 9 * MIB, 512);
    let (partition, _end) = partition(&disk);
    run("mkfs.ext4", &["-q", "-F", text(&partition)]);
    let point = folder.path().join("with space");
    fs::create_dir(&point).unwrap();
    run("mount", &[text(&partition), text(&point)]);
    let mounted = until(["umount", text(&point)]);
    let name = partition.file_name().unwrap().to_str().unwrap().to_owned();
    refused(disk.device(), &["mounted on", text(&point), &name]);
    refused(&partition, &["mounted on", text(&point)]);
    // As a source it is torn.
    let reason = send(disk.device(), folder.path(), &[]).failed(3);
    says(&reason, &["is in use", "mounted on", text(&point), &name, "torn"]);
    drop(mounted);
}

#[test]
fn a_partition_and_its_whole_exclude_each_other() {
    let folder = folder();
    let disk = old_disk(folder.path(), 9 * MIB, 512);
    let (partition, _end) = partition(&disk);
    let name = |device: &Path| device.file_name().unwrap().to_str().unwrap().to_owned();
    let holder = Holder::of(&partition);
    refused(disk.device(), &[&holder.name()]);
    drop(holder);
    let holder = Holder::of(disk.device());
    refused(&partition, &[&holder.name()]);
    drop(holder);
    is_old(&disk);
    // Nobody uses either: a partition is a device like any other.
    let image = folder.path().join("disk.img");
    images::random(&image, 7 * MIB, 1).unwrap();
    send(&image, &partition, &["--force"]).done();
    images::equal(&image, &partition).unwrap();
    assert!(name(&partition).starts_with(&name(disk.device())));
    assert!(super::content(disk.device())[..1 << 20].iter().all(|byte| *byte == super::OLD));
}

#[test]
fn swap() {
    let folder = folder();
    let disk = LoopDisk::new(folder.path(), 4 * MIB, Fs::None, 512).unwrap();
    run("mkswap", &["-q", text(disk.device())]);
    run("swapon", &[text(disk.device())]);
    let swap = until(["swapoff", text(disk.device())]);
    refused(disk.device(), &["the kernel as swap space"]);
    drop(swap);
}

#[test]
fn a_loop_device_on_top() {
    let folder = folder();
    let disk = old_disk(folder.path(), 4 * MIB, 512);
    for read_only in [None, Some("--read-only")] {
        let words = [read_only.into_iter().collect(), vec!["-f", "--show", text(disk.device())]].concat();
        let top = run("losetup", &words);
        let _end = until(["losetup", "-d", top.trim()]);
        refused(disk.device(), &["the loop device", top.trim()]);
        is_old(&disk);
    }
}

/// A process that has a device open for writing, without a claim to it.
struct Holder(Child);

impl Holder {
    fn of(device: &Path) -> Holder {
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3<>\"$1\"; echo ready; read x", "sh"]).arg(device);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        Holder(child)
    }

    fn name(&self) -> String {
        format!("sh (pid {})", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_writes_it() {
    let folder = folder();
    let disk = old_disk(folder.path(), 2 * MIB, 512);
    let holder = Holder::of(disk.device());
    refused(disk.device(), &[&holder.name()]);
    // As a source as well.
    let reason = send(disk.device(), folder.path(), &[]).failed(3);
    says(&reason, &["is in use", &holder.name(), "torn"]);
    drop(holder);
    is_old(&disk);
}

/// A guest has the device: QEMU makes no claim either.
#[test]
fn a_guest() {
    let folder = folder();
    let disk = old_disk(folder.path(), 2 * MIB, 512);
    let commands = ["-oL", "qemu-io", "-f", "raw", "-c", "length", "-c", "sleep 100000"];
    let mut command = Command::new("stdbuf");
    command.args(commands).arg(disk.device()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guest = Holder(command.spawn().expect("a program is missing: run `make deps`"));
    BufReader::new(guest.0.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    refused(disk.device(), &[&format!("qemu-io (pid {})", guest.0.id())]);
    drop(guest);
    is_old(&disk);
}

/// O_EXCL, as device mapper, RAID and mounts of other namespaces have it.
#[test]
fn a_claim() {
    let folder = folder();
    let disk = old_disk(folder.path(), 2 * MIB, 512);
    let o_excl = 0o200; // open(2), on every machine that this runs on
    let claim = std::os::unix::fs::OpenOptionsExt::custom_flags(File::options().read(true), o_excl)
        .open(disk.device())
        .unwrap();
    refused(disk.device(), &[&format!("(pid {})", std::process::id())]);
    is_old(&disk);
    drop(claim);
    let image = folder.path().join("disk.img");
    images::random(&image, MIB, 1).unwrap();
    send(&image, disk.device(), &["--force"]).done();
    holds(&disk, &image);
}
