//! What only looks like an unfinished copy is listed with the reason, and never touched.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{MIB, drop, dropped, image, killed_at, ledger, names, only, part, run};
use crate::scene::{AS_NOBODY, Scene, public_folder, public_program, says};

/// Content of what is there, and the files themselves, links not followed.
fn picture(folder: &Path) -> Vec<(String, u64, Option<Vec<u8>>)> {
    let look = |name: String| {
        let found = fs::symlink_metadata(folder.join(&name)).unwrap();
        let content = found.is_file().then(|| fs::read(folder.join(&name)).unwrap());
        (name, found.ino(), content)
    };
    names(folder).into_iter().map(look).collect()
}

/// Listed as foreign, and not dropped, by force neither.
#[track_caller]
fn stays(scene: &Scene, why: &str) -> Value {
    let before = picture(&scene.there);
    let copy = only(&scene.there);
    assert_eq!(copy["kind"], "foreign", "{copy}");
    says(copy["reason"].as_str().unwrap(), &[why, "disk.img.vmferry-"]);
    says(&drop(&image(scene), &["--force"]).failed(3), &["disk.img.vmferry-", "left alone"]);
    assert!(picture(&scene.there) == before, "{why}");
    copy
}

#[test]
fn files_of_that_name() {
    let scene = Scene::new(MIB);
    fs::write(part(&scene), "precious").unwrap();
    stays(&scene, "not an unfinished copy");
    fs::rename(part(&scene), ledger(&scene)).unwrap();
    stays(&scene, "is not a ledger");
    fs::remove_file(ledger(&scene)).unwrap();
    fs::write(scene.there.join("disk.img.vmferry-ledge~"), "precious").unwrap();
    stays(&scene, "is not a ledger");
}

#[test]
fn no_files() {
    for name in [part, ledger] {
        let scene = Scene::new(MIB);
        let name = name(&scene);
        fs::create_dir(&name).unwrap();
        stays(&scene, "not a regular file");
        fs::remove_dir(&name).unwrap();
        symlink(&scene.image, &name).unwrap();
        stays(&scene, "not a regular file");
        fs::remove_file(&name).unwrap();
        assert!(Command::new("mkfifo").arg(&name).status().unwrap().success());
        stays(&scene, "not a regular file");
    }
}

#[test]
fn links() {
    for name in [part, ledger] {
        let scene = Scene::new(64 * MIB);
        killed_at(&scene, 32 * MIB);
        let other = scene.here.path().join("other");
        fs::hard_link(name(&scene), &other).unwrap();
        stays(&scene, "has other names (hard links)");
        fs::remove_file(other).unwrap();
        dropped(&image(&scene), "new", &[]);
        assert_eq!(names(&scene.there), [""; 0]);
    }
}

#[test]
fn another_users() {
    for name in [part, ledger] {
        let scene = Scene::new(64 * MIB);
        killed_at(&scene, 32 * MIB);
        chown(name(&scene), Some(65534), None).unwrap();
        stays(&scene, "belongs to another user (65534)");
    }
}

/// Another file in its place: only the ledger is ours.
#[test]
fn another_file_in_its_place() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    let other = scene.there.join("other.img");
    fs::copy(part(&scene), &other).unwrap();
    fs::rename(&other, part(&scene)).unwrap();
    stays(&scene, "not an unfinished copy");
}

#[test]
fn one_that_somebody_writes() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    let open = File::options().append(true).open(part(&scene)).unwrap();
    says(&drop(&image(&scene), &["--force"]).failed(3), &["in use by", "left alone"]);
    std::mem::drop(open);
    dropped(&image(&scene), "new", &[]);
}

#[test]
fn a_damaged_ledger() {
    let damages: [fn(&File); 3] = [
        |file| file.set_len(3000).unwrap(),
        |file| file.write_all_at(&[0xFF; 9], 100).unwrap(),
        |file| file.write_all_at(&[0xFF; 9], 8192 + 64 * 3).unwrap(),
    ];
    for damage in damages {
        let scene = Scene::new(64 * MIB);
        killed_at(&scene, 32 * MIB);
        damage(&File::options().write(true).open(ledger(&scene)).unwrap());
        let before = picture(&scene.there);
        let copy = only(&scene.there);
        assert_eq!((&copy["kind"], &copy["durable_bytes"]), (&"damaged".into(), &Value::Null), "{copy}");
        says(copy["reason"].as_str().unwrap(), &["its ledger is damaged"]);
        says(copy["next"].as_str().unwrap(), &["starts it over", "--force"]);
        assert!(picture(&scene.there) == before);
        drop(&image(&scene), &["--force"]).done();
        assert_eq!(names(&scene.there), [""; 0]);
    }
}

/// A user sees what is not theirs, and can do nothing about it.
#[test]
fn as_nobody() {
    let public = public_folder();
    let program = public_program(public.path(), crate::ferry::vmferry().as_ref());
    let there = public.path().join("there");
    fs::create_dir(&there).unwrap();
    let scene = Scene::new(64 * MIB).to(&there);
    killed_at(&scene, 32 * MIB);
    let nobody = |words: &[&str]| {
        let command = AS_NOBODY.split(' ').skip(1).chain([program.to_str().unwrap()]);
        let words: Vec<_> = command.chain(words.iter().copied()).chain([there.to_str().unwrap()]).collect();
        let output = Command::new("setpriv").args(words).output().unwrap();
        crate::ferry::Sent::of(output)
    };
    let sent = nobody(&["status", "--json"]);
    sent.done();
    assert_eq!(sent.events()[0]["kind"], "foreign");
    says(sent.events()[0]["reason"].as_str().unwrap(), &["another user (0)"]);
    let before = picture(&there);
    says(&nobody(&["drop", "--json", image(&scene).to_str().unwrap()]).failed(3), &["left alone"]);
    assert!(picture(&there) == before);
    fs::set_permissions(&there, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    says(&nobody(&["status", "--json"]).failed(3), &["cannot read folder", "Permission denied"]);
    assert_eq!(run(["status", "--json", there.to_str().unwrap()]).events().len(), 2);
}
