//! What cannot be gone on with is started over or refused, and never believed.

use std::fs;
use std::os::unix::fs::FileExt;

use super::{MIB, killed_at, ledger, number, part};
use crate::scene::{Scene, notices, says};

/// An attempt that was killed half-way.
fn half(scene: &Scene) {
    killed_at(scene, 32 * MIB, &[]);
}

#[track_caller]
fn starts_over(scene: &Scene, why: &str) {
    let sent = scene.send(&scene.local());
    let done = sent.done();
    says(&notices(&sent).join("\n"), &["unfinished copy", "started over", why]);
    assert_eq!(number(&done, "resumed_bytes"), 0);
    scene.arrived();
}

/// E1 (b): empty, cut, a byte turned over anywhere.
#[test]
fn a_damaged_ledger_is_started_over() {
    let damages: [fn(&mut Vec<u8>); 4] = [
        Vec::clear,
        |bytes| bytes.truncate(3000),
        |bytes| bytes[20] ^= 1,
        |bytes| {
            let records = bytes.len() - 8192;
            bytes[8192 + records / 2] ^= 0x40;
        },
    ];
    for damage in damages {
        let scene = Scene::new(64 * MIB);
        half(&scene);
        let mut bytes = fs::read(ledger(&scene)).unwrap();
        damage(&mut bytes);
        fs::write(ledger(&scene), bytes).unwrap();
        starts_over(&scene, "damaged");
    }
}

/// Cut between two records: what is left is true, and no more.
#[test]
fn a_ledger_that_lost_its_end_says_less() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let bytes = fs::read(ledger(&scene)).unwrap();
    fs::write(ledger(&scene), &bytes[..8192 + 64 * 5]).unwrap();
    let done = scene.send(&scene.local()).done();
    assert!(number(&done, "resumed_bytes") <= 5 * MIB, "{done}");
    scene.arrived();
}

#[test]
fn without_a_ledger_it_is_started_over() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    fs::remove_file(ledger(&scene)).unwrap();
    starts_over(&scene, "nothing of it was known to be durable");
}

/// E1 (c)
#[test]
fn a_source_that_changed_is_sent_anew() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let source = fs::File::options().write(true).open(&scene.image).unwrap();
    source.write_all_at(&vec![0x5A; 1 << 20], 3 * MIB).unwrap();
    drop(source);
    starts_over(&scene, "the source is not what it was");
}

/// Even when its time stamp was put back: the time of change was not.
#[test]
fn a_source_with_an_old_time_stamp_is_sent_anew() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let source = fs::File::options().write(true).open(&scene.image).unwrap();
    let then = source.metadata().unwrap().modified().unwrap();
    source.write_all_at(&vec![0x5A; 1 << 20], 3 * MIB).unwrap();
    source.set_modified(then).unwrap();
    drop(source);
    starts_over(&scene, "the source is not what it was");
}

/// B7, E1: another size is no copy of the same.
#[test]
fn another_size_is_refused_with_both() {
    for size in [80 * MIB, 48 * MIB] {
        let scene = Scene::new(64 * MIB);
        half(&scene);
        fs::File::options().write(true).open(&scene.image).unwrap().set_len(size).unwrap();
        let kept = fs::read(ledger(&scene)).unwrap();
        let reason = scene.send(&scene.local()).failed(3);
        says(&reason, &[&(64 * MIB).to_string(), &size.to_string(), "--force starts it over"]);
        assert!(part(&scene).exists());
        assert_eq!(fs::read(ledger(&scene)).unwrap(), kept);
        scene.send(&scene.local().args(["--force"])).done();
        scene.arrived();
    }
}

/// E1 (d): another file of the same size, by another name before.
#[test]
fn another_file_in_its_place_is_not_touched() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let other = scene.there.join("other.img");
    testbed::images::random(&other, 64 * MIB, 9).unwrap();
    fs::rename(&other, part(&scene)).unwrap();
    let reason = scene.send(&scene.local()).failed(3);
    says(&reason, &["not an unfinished copy"]);
    let b3 = testbed::images::b3(&part(&scene)).unwrap();
    testbed::images::random(&other, 64 * MIB, 9).unwrap();
    assert_eq!(b3, testbed::images::b3(&other).unwrap());
}

/// E1 (d): the same file, written over.
#[test]
fn a_copy_that_something_else_wrote_is_refused() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let other = fs::File::options().write(true).open(part(&scene)).unwrap();
    other.write_all_at(&vec![0x77; 64 << 20], 0).unwrap();
    drop(other);
    let reason = scene.send(&scene.local()).failed(3);
    says(&reason, &["does not hold what its ledger says", "--force starts it over"]);
    scene.send(&scene.local().args(["--force"])).done();
    scene.arrived();
}

/// One granule of those durable: readback finds it, as it reads all of them.
#[test]
fn readback_finds_the_one_granule_that_rotted() {
    let scene = Scene::new(64 * MIB);
    half(&scene);
    let other = fs::File::options().write(true).open(part(&scene)).unwrap();
    other.write_all_at(&[0x77; 4096], MIB + 8192).unwrap();
    drop(other);
    let reason = scene.send(&scene.local().args(["--verify", "readback"])).failed(3);
    says(&reason, &["does not hold what its ledger says", &format!("at byte {MIB}")]);
}

/// Nobody believes a ledger that others may have written.
#[test]
fn a_ledger_that_others_may_write_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(64 * MIB);
    half(&scene);
    fs::set_permissions(ledger(&scene), fs::Permissions::from_mode(0o666)).unwrap();
    starts_over(&scene, "damaged");
}

/// Its name is nobody else's: a file of that name would be believed.
#[test]
fn no_image_takes_a_ledgers_name() {
    let scene = Scene::new(MIB);
    let image = scene.here.path().join("x.vmferry-ledger");
    fs::copy(&scene.image, &image).unwrap();
    let reason = scene.send(&scene.local_as(&image)).failed(3);
    says(&reason, &["x.vmferry-ledger", "vmferry's own files"]);
}
