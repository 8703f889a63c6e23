//! Destinations that are taken, in use, or closed to the receiver.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testbed::images;

use crate::ferry::vmferry;
use crate::scene::{AS_NOBODY, Attempt, Scene, hurry, public_folder, public_program, says, slow_link};

#[test]
fn what_stands_there_is_kept_and_the_way_out_is_named() {
    let scene = Scene::new(1 << 20);
    let copy = scene.there.join("disk.img");
    fs::write(&copy, "precious").unwrap();
    let scene = scene.expecting_what_is_there();
    let reason = scene.send(&scene.local()).failed(3);
    says(&reason, &[copy.to_str().unwrap(), "exists on the destination", "--force"]);
    scene.untouched();
    assert_eq!(fs::read_to_string(&copy).unwrap(), "precious");

    fs::remove_file(&copy).unwrap();
    fs::create_dir(&copy).unwrap();
    fs::create_dir(copy.join("disk.img")).unwrap();
    for force in [None, Some("--force")] {
        // A folder of that name is a folder to copy into; what is in there is one as well.
        let reason = Attempt::start(scene.local().args(force).command(&copy)).wait().failed(3);
        says(&reason, &[copy.join("disk.img").to_str().unwrap(), "is a folder", "give another name"]);
        scene.untouched();
    }
    fs::remove_dir_all(&copy).unwrap();

    let target = scene.here.path().join("elsewhere");
    fs::write(&target, "precious").unwrap();
    symlink(&target, &copy).unwrap();
    for force in [None, Some("--force")] {
        let reason = scene.send(&scene.local().args(force)).failed(3);
        says(&reason, &[copy.to_str().unwrap(), "symbolic link", "name the file itself"]);
        scene.untouched();
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    }
    fs::remove_file(&copy).unwrap();
    symlink("/dev/null", &copy).unwrap();
    scene.send(&scene.local().arg("--force")).failed(3);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let scene = Scene::new(4096);
    for to in ["no/such/place.img", "new-folder/"] {
        let reason = Attempt::start(scene.local().command(scene.there.join(to))).wait().failed(3);
        says(&reason, &[scene.there.to_str().unwrap(), "on the destination", "create it first"]);
    }
    let second = scene.here.path().join("second.img");
    images::random(&second, 4096, 2).unwrap();
    let two = scene.local().arg(&second);
    let reason = Attempt::start(two.command(scene.there.join("one.img"))).wait().failed(3);
    says(&reason, &["one.img is not a folder on the destination"]);
    scene.untouched();
}

#[test]
fn the_source_itself_is_no_destination() {
    let scene = Scene::new(1 << 20);
    let same = scene.there.join("disk.img");
    fs::hard_link(&scene.image, &same).unwrap();
    let scene = scene.expecting_what_is_there();
    for force in [None, Some("--force")] {
        let reason = scene.send(&scene.local().args(force)).failed(3);
        says(&reason, &[same.to_str().unwrap(), "is the source itself", "give another destination"]);
        scene.untouched();
    }
}

#[test]
fn a_second_job_to_the_same_name_waits_its_turn() {
    let link = slow_link();
    let scene = Scene::new(100 << 20);
    let mut first = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]));
    first.until_copying();
    let second = Scene::new(1 << 20).to(&scene.there);
    let reason = second.send(&second.over(&link)).failed(3);
    says(
        &reason,
        &["disk.img.vmferry-part", "is being written by another vmferry job", "wait for it or end it"],
    );
    second.untouched();
    hurry(&link);
    first.wait().done();
    scene.arrived();
}

/// `qemu-io` with the image open for writing, once it answers.
fn qemu_io(path: &Path) -> Child {
    let mut child = Command::new("qemu-io")
        .args(["-f", "raw"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu-io is missing: run `make deps`");
    child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    child
}

#[test]
fn an_image_that_a_guest_uses_is_not_replaced_by_force() {
    let scene = Scene::new(1 << 20);
    let copy = scene.there.join("disk.img");
    images::random(&copy, 1 << 20, 7).unwrap();
    let scene = scene.expecting_what_is_there();
    let mut guest = qemu_io(&copy);
    let reason = scene.send(&scene.local().arg("--force")).failed(3);
    says(
        &reason,
        &[copy.to_str().unwrap(), &format!("in use by qemu-io (pid {})", guest.id()), "stop it first"],
    );
    scene.untouched();
    guest.kill().unwrap();
    guest.wait().unwrap();
    scene.send(&scene.local().arg("--force")).done();
    scene.arrived();
}

#[test]
fn a_receiver_without_permission_says_so() {
    let public = public_folder();
    let program = public_program(public.path(), Path::new(vmferry()));
    let there = public.path().join("there");
    fs::create_dir(&there).unwrap();
    let scene = Scene::new(1 << 20).to(&there);
    let nobody = scene.local().remote_path(format!("{AS_NOBODY} {}", program.display()));
    fs::set_permissions(&there, fs::Permissions::from_mode(0o755)).unwrap();
    let reason = scene.send(&nobody).failed(3);
    says(
        &reason,
        &[
            "there",
            "cannot write into folder",
            there.to_str().unwrap(),
            "Permission denied",
            "another folder",
        ],
    );
    scene.untouched();
    fs::set_permissions(&there, fs::Permissions::from_mode(0o700)).unwrap();
    let reason = scene.send(&nobody).failed(3);
    says(&reason, &["there", there.to_str().unwrap(), "Permission denied", "sudo -n vmferry"]);
    scene.untouched();
    // The command is not executable for that user.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let reason = scene.send(&nobody).failed(3);
    says(&reason, &["there", "Permission denied"]);
    scene.untouched();
}
