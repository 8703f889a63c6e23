//! The other way round: images of another host, fetched to this one.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod endings;
mod refusals;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferry::{Ferry, Sent};
use scene::{Attempt, Scene, notices, says};
use testbed::disk::{Fs, LoopDisk};
use testbed::images;
use testbed::net::{Link, LinkConfig};

const MIB: u64 = 1 << 20;

/// From this host to this host.
fn local(scene: &Scene) -> Ferry {
    Ferry::local().remote_path(scene.peer())
}

/// From host b to host a.
fn over(scene: &Scene, link: &Link) -> Ferry {
    Ferry::over(link).remote_path(scene.peer())
}

/// Starts to fetch the scene's image into its folder.
fn start(scene: &Scene, ferry: &Ferry) -> Attempt {
    Attempt::start(ferry.fetching([&scene.image], &scene.there))
}

fn fetch(scene: &Scene, ferry: &Ferry) -> Sent {
    start(scene, ferry).wait()
}

/// The fields of an object.
fn fields(event: &serde_json::Value) -> Vec<&String> {
    event.as_object().unwrap().keys().collect()
}

#[test]
fn an_image_arrives_and_the_events_are_those_of_a_push() {
    let link = Link::up(LinkConfig::default()).unwrap();
    for transport in ["tls", "tcp"] {
        let scene = Scene::new(9 * MIB + 513);
        let words = ["--transport", transport, "--streams", "3"];
        let sent = fetch(&scene, &over(&scene, &link).args(words));
        let done = sent.done();
        scene.arrived();
        assert_eq!(done["digests"]["disk.img"]["b3"], images::b3(&scene.image).unwrap());
        assert_eq!((&done["transport"], &done["lanes"]), (&transport.into(), &3.into()));
        assert_eq!(done["data_bytes"], 9 * MIB + 513);

        fs::remove_file(scene.there.join("disk.img")).unwrap();
        let pushed = scene.send(&scene.over(&link).args(words));
        pushed.done();
        let (events, expected) = (sent.events(), pushed.events());
        assert_eq!(events.len(), expected.len());
        for (event, expected) in events.iter().zip(&expected) {
            assert_eq!(event["event"], expected["event"]);
            assert_eq!(fields(event), fields(expected));
        }
        assert!(events[0]["peer"].as_str().unwrap().starts_with(&link.a().address().to_string()));
        // What HOST says begins with its name.
        let unencrypted: Vec<_> = notices(&sent).into_iter().filter(|n| n.contains("unencrypted")).collect();
        assert_eq!(unencrypted.len(), usize::from(transport == "tcp"), "{unencrypted:?}");
        assert!(unencrypted.iter().all(|notice| notice.starts_with("there: ")), "{unencrypted:?}");
    }
}

#[test]
fn people_are_told_where_it_came_from() {
    let scene = Scene::new(MIB);
    let sent = fetch(&scene, &local(&scene).for_people());
    assert_eq!(sent.exit, 0, "{}", sent.stderr);
    let copy = scene.there.join("disk.img");
    says(&sent.stdout, &[&format!("there:disk.img -> {}", copy.display()), "verified and durable"]);
    scene.arrived();
}

#[test]
fn several_images_dense_and_sparse() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let (from, to) = (ferry::folder(), ferry::folder());
    let file = |name: &str| from.path().join(name);
    images::random(&file("dense.img"), 5 * MIB + 1, 1).unwrap();
    images::sparse(&file("sparse.img"), 256 * MIB, 8 * MIB, 3).unwrap();
    fs::write(file("empty.img"), b"").unwrap();
    let names = ["dense.img", "sparse.img", "empty.img"];
    let ferry = Ferry::over(&link).args(["--log-interval", "0.1"]);
    let sent = Attempt::start(ferry.fetching(names.map(file), to.path())).wait();
    let done = sent.done();
    for name in names {
        images::equal(&file(name), &to.path().join(name)).unwrap();
        assert_eq!(done["digests"][name]["b3"], images::b3(&file(name)).unwrap(), "{name}");
    }
    assert!(images::allocated(&to.path().join("sparse.img")).unwrap() <= 9 * MIB);
    let committed = sent.events().iter().filter(|e| e["event"] == "committed").count();
    assert_eq!((committed, &done["images"]), (3, &3.into()));
}

#[test]
fn progress_is_that_of_the_sender() {
    let link = scene::slow_link();
    let scene = Scene::new(12 * MIB);
    let sent = fetch(&scene, &over(&scene, &link).args(["--log-interval", "0.5"]));
    let done = sent.done();
    let events = sent.events();
    let steps: Vec<_> = events.iter().filter(|e| e["event"] == "progress").collect();
    let number = |event: &serde_json::Value, field: &str| event[field].as_u64().unwrap();
    assert!(steps.iter().any(|s| (1..12 * MIB).contains(&number(s, "done_bytes"))), "{}", sent.stdout);
    assert!(steps.iter().any(|s| number(s, "network_bps") > 0 && s["bottleneck"] == "network"));
    for pair in steps.windows(2) {
        assert!(number(pair[0], "done_bytes") <= number(pair[1], "done_bytes"), "{pair:?}");
    }
    assert_eq!(done["bottleneck"], "network");
    scene.arrived();
}

#[test]
fn from_a_device_and_onto_one() {
    let folders = [ferry::folder(), ferry::folder(), ferry::folder()];
    let [from, to, onto] = &folders;
    let disk = LoopDisk::new(from.path(), 4 * MIB, Fs::None, 512).unwrap();
    images::dirty(disk.device(), 3 * MIB, 0x5a).unwrap();
    let copy = to.path().join("copy.img");
    Attempt::start(Ferry::local().fetching([disk.device()], &copy)).wait().done();
    let device = fs::read(disk.device()).unwrap();
    assert!(device == fs::read(&copy).unwrap());

    let other = LoopDisk::new(onto.path(), 5 * MIB, Fs::None, 512).unwrap();
    let reason = Attempt::start(Ferry::local().fetching([&copy], other.device())).wait().failed(3);
    says(&reason, &[other.device().to_str().unwrap(), "is a block device", "--force"]);
    let ferry = Ferry::local().arg("--force");
    Attempt::start(ferry.fetching([&copy], other.device())).wait().done();
    assert!(fs::read(other.device()).unwrap().starts_with(&device));
}

#[test]
fn a_dry_run_changes_nothing() {
    let scene = Scene::new(MIB);
    let done = fetch(&scene, &local(&scene).arg("--dry-run")).done();
    assert_eq!(done["digests"], serde_json::json!({}));
    scene.untouched();
    let sent = fetch(&scene, &local(&scene).arg("--dry-run").for_people());
    says(&sent.stdout, &["checked: this job can start; nothing was changed"]);
    scene.untouched();
}

#[test]
fn options_reach_the_end_that_they_are_for() {
    let scene = Scene::new(3 * MIB);
    let words = ["--engine", "sync", "--chunk", "256K", "--verify", "readback", "--chown", "daemon:7"];
    let more = ["--no-direct", "--digest", "b3", "--sync-window", "1M", "--memory", "8M", "--force"];
    let sent = fetch(&scene, &local(&scene).args(words).args(more));
    assert_eq!(sent.done()["engine"], "sync");
    scene.arrived();
    let copy = fs::metadata(scene.there.join("disk.img")).unwrap();
    assert_eq!((copy.uid(), copy.gid()), (1, 7));
}

/// No shell takes a path apart, wherever it starts.
#[test]
fn paths_start_where_a_login_does_and_mean_what_they_say() {
    let scene = Scene::new(4096);
    let home = scene.here.path().join("home");
    fs::create_dir(&home).unwrap();
    let odd = "a b'c\"$(touch pwned);d:e.img";
    images::random(&home.join(odd), 4096, 7).unwrap();
    // The shell's own words may be taken apart, of course.
    let remote = format!("cd {0}; HOME={0} {1}", home.display(), scene.peer());
    for typed in [odd.to_owned(), format!("~/{odd}"), home.join(odd).display().to_string()] {
        let ferry = local(&scene).remote_path(&remote).arg("--force");
        Attempt::start(ferry.fetching([&typed], &scene.there)).wait().done();
        images::equal(&home.join(odd), &scene.there.join(odd)).unwrap();
    }
    // Here as well: this shell's home and folder.
    for to in ["~/", "./x:y.img"] {
        let mut command = local(&scene).fetching([&scene.image], to);
        command.current_dir(&home).env("HOME", &home);
        Attempt::start(command).wait().done();
    }
    let copies: [PathBuf; 2] = [home.join("disk.img"), home.join("x:y.img")];
    copies.iter().for_each(|copy| images::equal(&scene.image, copy).unwrap());
    assert!(!home.join("pwned").exists() && !Path::new("pwned").exists());
}

#[test]
fn the_way_back_may_be_named() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let [v4, v6] = [link.a().address().to_string(), format!("[{}]", link.a().address6())];
    for (words, expected) in [
        (vec!["-4"], &v4),
        (vec!["-6"], &v6),
        (vec!["--via", &v6], &v6),
        (vec!["--via", &v6, "--via", &v4, "--streams", "2"], &v6),
        (vec!["--port", "7000"], &format!("{v4}:7000")),
    ] {
        let scene = Scene::new(MIB);
        let sent = fetch(&scene, &over(&scene, &link).args(&words));
        sent.done();
        let peer = sent.events()[0]["peer"].as_str().unwrap().to_owned();
        assert!(peer.starts_with(expected.as_str()), "{words:?}: {peer}");
        scene.arrived();
    }
}
