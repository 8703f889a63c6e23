//! Links of both kinds where a copy begins, grows and ends: no link at the destination is ever
//! followed, and nothing is written through one. (Also in `leftovers` and `errors`.)

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use testbed::images;

use crate::scene::{Attempt, Scene, hurry, says, slow_link};

const MIB: u64 = 1 << 20;
const PART: &str = "disk.img.vmferry-part";
const FORCE: [&[&str]; 2] = [&[], &["--force"]];

/// Somebody's file, which must stay as it is.
fn precious(scene: &Scene) -> PathBuf {
    let path = scene.here.path().join("precious");
    fs::write(&path, "precious").unwrap();
    path
}

#[track_caller]
fn is_precious(path: &Path) {
    assert_eq!(fs::read_to_string(path).unwrap(), "precious");
}

#[track_caller]
fn is_file(path: &Path) {
    assert!(fs::symlink_metadata(path).unwrap().is_file(), "{}", path.display());
}

#[test]
fn links_to_a_source_lead_to_it() {
    let scene = Scene::new(MIB);
    let folder = scene.here.path().join("folder");
    fs::create_dir(&folder).unwrap();
    symlink(&scene.image, folder.join("first")).unwrap();
    symlink("folder", scene.here.path().join("way")).unwrap();
    // A link to a link, below a folder that is one.
    let link = scene.here.path().join("way/disk.img");
    symlink("first", &link).unwrap();
    fs::hard_link(&scene.image, scene.here.path().join("twin.img")).unwrap();
    scene.send(&scene.local_as(&link)).done();
    scene.arrived();
    let copy = fs::symlink_metadata(scene.there.join("disk.img")).unwrap();
    assert!(copy.is_file() && copy.nlink() == 1, "a file of its own");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    // One name of several: it arrives, the other one is no reason to refuse.
    let twin = scene.here.path().join("twin.img");
    Attempt::start(scene.local_as(&twin).command(scene.there.join("twin.img"))).wait().done();
    images::equal(&twin, &scene.there.join("twin.img")).unwrap();
}

#[test]
fn a_source_that_is_a_loop_of_links_is_refused() {
    let scene = Scene::new(4096);
    let [one, other] = ["one", "other"].map(|name| scene.here.path().join(name));
    symlink("other", &one).unwrap();
    symlink("one", &other).unwrap();
    let reason = scene.send(&scene.local_as(&one)).failed(3);
    says(&reason, &[one.to_str().unwrap(), "symbolic links"]);
    scene.untouched();
}

/// Where each kind of symbolic link leads: a file, nothing, itself, the source.
fn leads(scene: &Scene, own_name: &str) -> Vec<PathBuf> {
    vec![precious(scene), scene.here.path().join("nothing"), own_name.into(), scene.image.clone()]
}

#[test]
fn a_symbolic_link_at_the_final_name_is_refused() {
    let scene = Scene::new(4096);
    let name = scene.there.join("disk.img");
    for to in leads(&scene, "disk.img") {
        symlink(&to, &name).unwrap();
        // By the folder, and by the whole name.
        for place in [&scene.there, &name] {
            for words in FORCE {
                let ferry = scene.local().args(words.iter().copied());
                let reason = Attempt::start(ferry.command(place)).wait().failed(3);
                says(&reason, &[name.to_str().unwrap(), "symbolic link", "name the file itself"]);
                assert_eq!(fs::read_link(&name).unwrap(), to);
            }
        }
        fs::remove_file(&name).unwrap();
        scene.untouched();
    }
    is_precious(&scene.here.path().join("precious"));
    assert!(!scene.here.path().join("nothing").exists());
}

#[test]
fn a_symbolic_link_at_the_part_files_name_is_refused() {
    let scene = Scene::new(4096);
    let name = scene.there.join(PART);
    for to in leads(&scene, PART) {
        symlink(&to, &name).unwrap();
        for words in [FORCE[0], FORCE[1], &["--dry-run"]] {
            let reason = scene.send(&scene.local().args(words.iter().copied())).failed(3);
            says(&reason, &[name.to_str().unwrap(), "not a regular file", "move it away"]);
            assert_eq!(fs::read_link(&name).unwrap(), to);
        }
        fs::remove_file(&name).unwrap();
        scene.untouched();
    }
    is_precious(&scene.here.path().join("precious"));
    assert!(!scene.here.path().join("nothing").exists());
}

#[test]
fn folders_on_the_way_may_be_links_if_they_lead_somewhere() {
    let scene = Scene::new(4096);
    let at = |name: &str| scene.here.path().join(name);
    symlink(&scene.there, at("way")).unwrap();
    for to in [at("way"), at("way/disk.img")] {
        Attempt::start(scene.local().command(&to)).wait().done();
        scene.arrived();
        fs::remove_file(scene.there.join("disk.img")).unwrap();
    }
    symlink(at("gone"), at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    for (way, why) in [("dangling", "does not exist"), ("loop", "symbolic links")] {
        let reason = Attempt::start(scene.local().command(at(way).join("disk.img"))).wait().failed(3);
        says(&reason, &[at(way).to_str().unwrap(), why]);
        let reason = Attempt::start(scene.local().command(at(way).join(""))).wait().failed(3);
        says(&reason, &[at(way).to_str().unwrap()]);
    }
    assert!(!at("gone").exists());
    // Roundabout to the folder of the source: it is the source all the same.
    symlink(scene.here.path(), scene.there.join("back")).unwrap();
    let reason =
        Attempt::start(scene.local().arg("--force").command(scene.there.join("back"))).wait().failed(3);
    says(&reason, &["is the source itself"]);
    fs::remove_file(scene.there.join("back")).unwrap();
    scene.untouched();
}

/// The name is replaced, not the file that has it.
#[test]
fn a_file_with_another_name_keeps_its_content_when_this_one_is_replaced() {
    let scene = Scene::new(MIB);
    let other = precious(&scene);
    let name = scene.there.join("disk.img");
    fs::hard_link(&other, &name).unwrap();
    says(&scene.send(&scene.local()).failed(3), &["exists on the destination", "--force"]);
    scene.send(&scene.local().arg("--force")).done();
    scene.arrived();
    is_precious(&other);
    assert_ne!(fs::metadata(&name).unwrap().ino(), fs::metadata(&other).unwrap().ino());
}

/// Does something in the middle of a copy, and returns how it ended.
fn meanwhile(scene: &Scene, words: &[&str], plant: impl FnOnce()) -> crate::ferry::Sent {
    let link = slow_link();
    let mut attempt =
        scene.start(&scene.over(&link).args(["--log-interval", "0.1"]).args(words.iter().copied()));
    attempt.until_copying();
    plant();
    hurry(&link);
    attempt.wait()
}

#[test]
fn a_link_that_appears_at_the_final_name_stays_and_leads_nowhere() {
    for words in FORCE {
        let scene = Scene::new(8 * MIB);
        let (target, name) = (precious(&scene), scene.there.join("disk.img"));
        for to in [&target, &scene.here.path().join("nothing")] {
            let reason = meanwhile(&scene, words, || symlink(to, &name).unwrap()).failed(1);
            says(&reason, &["there: cannot give the copy its name", name.to_str().unwrap(), "appeared"]);
            assert_eq!(fs::read_link(&name).unwrap(), *to);
            fs::remove_file(&name).unwrap();
            scene.untouched();
        }
        is_precious(&target);
        assert!(!scene.here.path().join("nothing").exists());
        let reason = meanwhile(&scene, words, || fs::hard_link(&target, &name).unwrap()).failed(1);
        says(&reason, &["appeared"]);
        is_precious(&name);
    }
}

/// What stood there was to be replaced; the link that took its place may be, its target not.
#[test]
fn a_link_that_takes_the_place_of_what_is_replaced_is_not_followed() {
    let scene = Scene::new(8 * MIB);
    let (target, name) = (precious(&scene), scene.there.join("disk.img"));
    fs::write(&name, "old").unwrap();
    let sent = meanwhile(&scene, &["--force"], || {
        fs::remove_file(&name).unwrap();
        symlink(&target, &name).unwrap();
    });
    is_precious(&target);
    sent.done();
    is_file(&name);
    scene.arrived();
}

#[test]
fn a_link_that_takes_the_place_of_the_part_file_is_not_followed() {
    for words in FORCE {
        let scene = Scene::new(8 * MIB);
        let (target, part) = (precious(&scene), scene.there.join(PART));
        let sent = meanwhile(&scene, words, || {
            fs::remove_file(&part).unwrap();
            symlink(&target, &part).unwrap();
        });
        says(&sent.failed(1), &["there: ", PART, "is no longer the copy"]);
        assert_eq!(fs::read_link(&part).unwrap(), target, "what is not ours stays");
        is_precious(&target);
        fs::remove_file(&part).unwrap();
        scene.untouched();
    }
}

#[test]
fn a_link_that_takes_the_place_of_the_folder_is_not_followed() {
    let scene = Scene::new(8 * MIB);
    ["folder", "elsewhere"].iter().for_each(|name| fs::create_dir(scene.there.join(name)).unwrap());
    let at = |name: &str| scene.there.join(name);
    let link = slow_link();
    let ferry = scene.over(&link).args(["--log-interval", "0.1"]);
    let mut attempt = Attempt::start(ferry.command(at("folder")));
    attempt.until_copying();
    fs::rename(at("folder"), at("moved")).unwrap();
    symlink(at("elsewhere"), at("folder")).unwrap();
    hurry(&link);
    let sent = attempt.wait();
    assert_eq!(fs::read_dir(at("elsewhere")).unwrap().count(), 0, "{}", sent.stdout);
    says(&sent.failed(1), &["there: ", at("folder").to_str().unwrap(), "no longer the folder", "moved"]);
    assert_eq!(fs::read_dir(at("moved")).unwrap().count(), 0);
}
