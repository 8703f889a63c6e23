//! What a key may reach, and that it reaches nothing else.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use crate::ferry::vmferry;
use crate::house::{House, MIB, Service, list};
use crate::scene::{Attempt, says};

const ALL: [&str; 2] = ["--overwrite", "--keep-owner"];
const VICTIM: &str = "as it was";

/// A house with a place outside that is not to be reached.
fn house() -> House {
    let house = House::with(&[]);
    house.allow("a", &ALL);
    fs::create_dir(house.path("outside")).unwrap();
    fs::write(house.path("outside/victim"), VICTIM).unwrap();
    fs::create_dir(house.into.join("sub")).unwrap();
    house
}

#[track_caller]
fn untouched(house: &House) {
    assert_eq!(list(&house.path("outside")), ["victim"]);
    assert_eq!(fs::read_to_string(house.path("outside/victim")).unwrap(), VICTIM);
}

#[test]
fn no_path_leads_out() {
    let house = house();
    let service = house.start(&[]);
    house.image("disk.img", MIB);
    symlink(house.path("outside"), house.into.join("away")).unwrap();
    symlink("sub", house.into.join("near")).unwrap();
    symlink(house.path("outside/victim"), house.into.join("link.img")).unwrap();
    symlink(house.path("outside/victim"), house.into.join("grows.img.vmferry-part")).unwrap();
    symlink(house.path("outside/victim"), house.into.join("sub/disk.img")).unwrap();
    let (before, whole) = (list(&house.into), house.path("outside/x").display().to_string());
    let escape = "../".repeat(20) + "etc/vmferry-was-here";
    for (path, why) in [
        ("../../etc/x", "leads out of the folder of this key"),
        (&escape, "leads out of the folder of this key"),
        ("../outside/victim", "leads out of the folder of this key"),
        ("sub/../../outside/x", "leads out of the folder of this key"),
        ("..", "leads out of the folder of this key"),
        // Absolute paths begin at the key's folder.
        ("/etc/x", "folder etc does not exist"),
        (&whole, "does not exist"),
        ("~/x", "folder ~ does not exist"),
        ("away/x", "symbolic link"),
        ("away/victim", "symbolic link"),
        ("away/", "symbolic link"),
        ("near/x", "symbolic link"),
        ("link.img", "symbolic link"),
        ("sub/", "symbolic link"),
        ("grows.img", "is not a regular file"),
        ("/dev/null", "is not a device that this key may overwrite"),
        ("/proc/self/root/etc/x", "does not exist"),
    ] {
        let told = house.sent(&service, "a", &["--force", "disk.img"], path).failed(3);
        assert!(told.contains(why) && told.starts_with("127.0.0.1"), "{path}: {told}");
    }
    untouched(&house);
    assert_eq!(list(&house.into), before);
    assert!(!Path::new("/etc/vmferry-was-here").exists() && !Path::new("/etc/x").exists());
}

/// While a job runs, somebody on the destination puts a link in its way.
#[test]
fn a_link_that_appears_meanwhile_is_not_followed() {
    let house = house();
    let service = house.start(&[]);
    house.image("disk.img", 3 * MIB);
    let place = |name: &str| house.into.join(name);
    let plant = |name: &str| symlink(house.path("outside/victim"), place(name)).unwrap();
    let begin = |words: &[&str], to| {
        let words = [words, &["--limit", "12Mb/s", "--chunk", "64K", "disk.img"]].concat();
        house.under_way(&service, "a", &words, to)
    };

    let job = begin(&[], "");
    plant("disk.img");
    says(&job.wait().failed(1), &["cannot give the copy its name", "appeared during the copy"]);
    fs::remove_file(place("disk.img")).unwrap();
    assert_eq!(house.listed(), ["sub"]);

    // Where a file was to be replaced, the link is replaced, not what it leads to.
    fs::write(place("disk.img"), "old").unwrap();
    let job = begin(&["--force"], "");
    fs::remove_file(place("disk.img")).unwrap();
    plant("disk.img");
    job.wait().done();
    images::equal(&house.path("disk.img"), &place("disk.img")).unwrap();
    assert!(place("disk.img").symlink_metadata().unwrap().is_file());
    fs::remove_file(place("disk.img")).unwrap();

    let job = begin(&[], "");
    fs::remove_file(place("disk.img.vmferry-part")).unwrap();
    plant("disk.img.vmferry-part");
    says(&job.wait().failed(1), &["is no longer the copy"]);
    fs::remove_file(place("disk.img.vmferry-part")).unwrap();
    assert_eq!(house.listed(), ["sub"]);

    // The folder on the way: the copy stays in the one that was checked, and is none where it was to be.
    let job = begin(&[], "sub/");
    fs::rename(place("sub"), place("moved")).unwrap();
    symlink(house.path("outside"), place("sub")).unwrap();
    says(&job.wait().failed(1), &["is no longer the folder of the copy"]);
    assert_eq!(fs::read_dir(place("moved")).unwrap().count(), 0);
    untouched(&house);
}

/// What an image says of itself is not even looked at.
#[test]
fn a_backing_file_is_bytes_like_others() {
    let house = house();
    let trace = house.path("trace");
    let mut strace = Command::new("strace");
    // The tracer is a grandchild: the process is the service's own.
    strace.args(["-D", "-f", "-e", "trace=open,openat,openat2", "-o"]).arg(&trace).arg(vmferry());
    let local = [127, 0, 0, 1].into();
    let mut service = Service::run(house.command(strace, "0", &[]), local);
    let image = house.path("evil.qcow2");
    let make = ["create", "-q", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw"];
    crate::watch::tool(Command::new("qemu-img").args(make).arg(&image).arg("1M"));
    says(&house.sent(&service, "a", &["evil.qcow2"], "").failed(3), &["/etc/passwd", "--format raw"]);
    house.sent(&service, "a", &["--format", "raw", "evil.qcow2"], "").done();
    images::equal(&image, &house.into.join("evil.qcow2")).unwrap();
    assert_eq!(service.end(), 0);
    let calls = crate::watch::eventually("the tracer is through", || {
        let calls = fs::read_to_string(&trace).unwrap();
        calls.contains("exited with 0").then_some(calls)
    });
    assert!(calls.contains("evil.qcow2.vmferry-part"), "{calls}");
    let opened = calls.lines().filter(|l| l.contains("passwd")).collect::<Vec<_>>();
    assert!(opened.is_empty(), "{opened:?}");
}

#[test]
fn each_key_has_its_folder() {
    let house = house();
    house.allow("a", &["--into", "of-a"]);
    house.allow("b", &["--into", "of-b"]);
    house.allow("c", &["--into", "of-c"]);
    let service = house.start(&[]);
    fs::create_dir(house.into.join("of-a")).unwrap();
    symlink("of-a", house.into.join("of-b")).unwrap();
    house.image("disk.img", MIB);
    house.sent(&service, "a", &["disk.img"], "").done();
    // A link in the place of a key's folder, and no folder.
    let send = |name, to| house.sent(&service, name, &["disk.img"], to);
    says(&send("b", "").failed(3), &["folder of this key", "of-b", "cannot be opened"]);
    says(&send("c", "").failed(3), &["folder of this key", "of-c", "No such file"]);
    fs::remove_file(house.into.join("of-b")).unwrap();
    fs::create_dir(house.into.join("of-b")).unwrap();
    says(&send("b", "../of-a/x").failed(3), &["leads out"]);
    says(&send("b", "/of-a/x").failed(3), &["folder of-a does not exist"]);
    says(&send("b", "of-a/x").failed(3), &["folder of-a does not exist"]);
    send("b", "/x").done();
    assert_eq!(list(&house.into.join("of-a")), ["disk.img"]);
    assert_eq!(list(&house.into.join("of-b")), ["x"]);
}

#[test]
fn sizes_and_replacing() {
    let house = house();
    house.allow("small", &["--max-bytes", "2M"]);
    let service = house.start(&[]);
    house.image("1.img", MIB);
    house.image("2.img", MIB);
    house.image("3.img", MIB + 1);
    let send = |words: &[&str]| house.sent(&service, "small", words, "");
    says(&send(&["1.img", "3.img"]).failed(3), &["have 2097153 bytes", "may have 2097152"]);
    send(&["1.img", "2.img"]).done();
    says(&send(&["1.img"]).failed(3), &["exists on the destination", "may not replace files"]);
    says(&send(&["--force", "1.img"]).failed(3), &["exists on the destination", "may not replace files"]);
    let all = |words: &[&str]| house.sent(&service, "a", words, "1.img");
    says(&all(&["3.img"]).failed(3), &["exists on the destination", "--force"]);
    images::equal(&house.path("1.img"), &house.into.join("1.img")).unwrap();
    all(&["--force", "3.img"]).done();
    images::equal(&house.path("3.img"), &house.into.join("1.img")).unwrap();
}

#[test]
fn devices_that_are_listed_and_no_others() {
    let house = house();
    let disks = [(); 2].map(|()| LoopDisk::new(house.dir.path(), 4 * MIB, Fs::None, 512).unwrap());
    let [given, other] = disks.each_ref().map(|d| d.device().to_str().unwrap());
    house.allow("disks", &["--device", given, "--device", house.path("outside/victim").to_str().unwrap()]);
    let service = house.start(&[]);
    let image = house.image("disk.img", 4 * MIB);
    symlink(other, house.into.join("node")).unwrap();
    let send = |name, to: &str| house.sent(&service, name, &["--force", "disk.img"], to);
    says(&send("disks", other).failed(3), &[other, "is not a device that this key may overwrite"]);
    says(&send("a", given).failed(3), &[given, "is not a device that this key may overwrite"]);
    says(&send("disks", "node").failed(3), &["symbolic link"]);
    says(&send("disks", &format!("/dev/../{}", &other[1..])).failed(3), &["is not a device that this key"]);
    send("disks", house.path("outside/victim").to_str().unwrap()).failed(3);
    untouched(&house);
    let told = house.sent(&service, "disks", &["disk.img"], given).failed(3);
    says(&told, &["is a block device", "--force"]);
    let two = house.sent(&service, "disks", &["--force", "disk.img", "trace.img"], given);
    assert_ne!(two.exit, 0);
    assert_eq!(fs::read(other).unwrap(), vec![0; 4 << 20]);
    send("disks", given).done();
    images::equal(&image, disks[0].device()).unwrap();
}

#[test]
fn owner_and_mode() {
    let house = house();
    house.allow("b", &[]);
    let service = house.start(&[]);
    let image = house.image("disk.img", MIB);
    chown(&image, Some(12345), Some(23456)).unwrap();
    fs::set_permissions(&image, PermissionsExt::from_mode(0o6755)).unwrap();
    let owner = |name| {
        Attempt::start(house.send(&service, name, &["disk.img"], name)).wait().done();
        let found = house.into.join(name).metadata().unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(owner("a"), (12345, 23456, 0o755));
    assert_eq!(owner("b"), (0, 0, 0o755));
}
