//! `--chown`: the copy belongs to whom was asked for, or nothing is changed.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ferry::{Ferry, Sent, vmferry};
use scene::{AS_NOBODY, Scene, notices, public_folder, public_program, says};
use tempfile::TempDir;
use testbed::disk::{Fs, LoopDisk};
use testbed::images;

/// An image that belongs to 107:108.
fn scene() -> Scene {
    let scene = Scene::new(1 << 20);
    chown(&scene.image, Some(107), Some(108)).unwrap();
    fs::set_permissions(&scene.image, fs::Permissions::from_mode(0o640)).unwrap();
    scene
}

fn owner(copy: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(copy).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

#[test]
fn names_and_numbers_of_the_destination() {
    for (typed, expected) in [
        ("daemon", (1, 108)),
        ("daemon:nogroup", (1, 65534)),
        (":daemon", (107, 1)),
        ("4242:4343", (4242, 4343)),
        ("nobody:7", (65534, 7)),
    ] {
        let scene = scene();
        let sent = scene.send(&scene.local().args(["--chown", typed]));
        sent.done();
        scene.arrived();
        let (uid, gid, mode) = owner(&scene.there.join("disk.img"));
        assert_eq!(((uid, gid), mode), (expected, 0o640), "{typed}");
        assert_eq!(notices(&sent), Vec::<String>::new(), "{typed}");
    }
}

#[test]
fn names_that_are_unknown_are_refused() {
    let scene = scene();
    for (typed, what) in [
        ("no-such-user", "user 'no-such-user' is unknown on the destination"),
        ("daemon:no-such-group", "group 'no-such-group' is unknown on the destination"),
        ("4294967295", "user '4294967295' is unknown"),
    ] {
        for dry in [&[][..], &["--dry-run"]] {
            let reason = scene.send(&scene.local().args(["--chown", typed]).args(dry)).failed(3);
            says(&reason, &["there: ", what, "--chown"]);
        }
    }
    scene.untouched();
}

#[test]
fn words_that_name_nobody_are_a_mistake_of_the_command_line() {
    let scene = scene();
    for typed in ["", ":", "a:", "a:b:c", "a b"] {
        let sent = scene.send(&scene.local().arg(format!("--chown={typed}")));
        assert_eq!(sent.exit, 2, "{typed}: {}", sent.stderr);
        says(&sent.stderr, &["--chown"]);
    }
    scene.untouched();
}

/// Such a receiver may lock little memory, too, and says so.
fn about_owner(sent: &Sent) -> Vec<String> {
    notices(sent).into_iter().filter(|notice| !notice.contains("RLIMIT_MEMLOCK")).collect()
}

/// A receiver without any right, and a folder that it may write.
struct Nobody {
    public: TempDir,
    program: PathBuf,
    scene: Scene,
}

impl Nobody {
    fn new() -> Nobody {
        let public = public_folder();
        let program = public_program(public.path(), Path::new(vmferry()));
        let there = public.path().join("there");
        fs::create_dir(&there).unwrap();
        chown(&there, Some(65534), Some(65534)).unwrap();
        Nobody { scene: scene().to(&there), public, program }
    }

    fn ferry(&self) -> Ferry {
        self.scene.local().remote_path(format!("{AS_NOBODY} {}", self.program.display()))
    }
}

#[test]
fn who_may_not_give_files_away_is_told_before_anything_changes() {
    let nobody = Nobody::new();
    for dry in [&[][..], &["--dry-run"]] {
        for typed in ["daemon", "daemon:daemon", ":daemon"] {
            let sent = nobody.scene.send(&nobody.ferry().args(["--chown", typed]).args(dry));
            let cause = format!("cannot be given to {typed} by the receiving user (65534)");
            let there = nobody.scene.there.to_str().unwrap();
            let next = "run the receiver as root";
            says(&sent.failed(3), &["there: ", there, &cause, "Operation not permitted", next]);
            nobody.scene.untouched();
        }
    }
    assert_eq!(fs::read_dir(nobody.public.path()).unwrap().count(), 2, "the program and the folder");
}

#[test]
fn an_ordinary_user_may_ask_for_itself() {
    let nobody = Nobody::new();
    let sent = nobody.scene.send(&nobody.ferry().args(["--chown", "nobody:nogroup"]));
    sent.done();
    nobody.scene.arrived();
    assert_eq!(owner(&nobody.scene.there.join("disk.img")), (65534, 65534, 0o640));
    assert_eq!(about_owner(&sent), Vec::<String>::new());
}

#[test]
fn what_was_not_asked_for_and_is_not_possible_is_a_notice() {
    let nobody = Nobody::new();
    let sent = nobody.scene.send(&nobody.ferry().args(["--chown", "nobody"]));
    sent.done();
    nobody.scene.arrived();
    let [notice] = &about_owner(&sent)[..] else { panic!("one notice: {sent:?}") };
    says(notice, &["there: ", "disk.img", "given to nobody", "its group could not be kept"]);
}

#[test]
fn a_copy_of_a_device_is_given_away_as_well() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let disk = LoopDisk::new(from.path(), 1 << 20, Fs::None, 512).unwrap();
    let copy = to.path().join("disk.img");
    Ferry::local().args(["--chown", "daemon:daemon"]).arg(disk.device()).send(&copy).done();
    assert_eq!(owner(&copy), (1, 1, 0o600));
}

#[test]
fn a_device_belongs_to_whom_its_system_says() {
    let from = ferry::folder();
    let disk = LoopDisk::new(from.path(), 1 << 20, Fs::None, 512).unwrap();
    images::dirty(disk.device(), 1 << 20, 0xaa).unwrap();
    let before = images::b3(disk.device()).unwrap();
    let sent = scene().local().args(["--force", "--chown", "daemon"]).send(disk.device());
    says(&sent.failed(3), &["there: ", "is a block device", "udev", "leave --chown out"]);
    assert_eq!(images::b3(disk.device()).unwrap(), before);
}
