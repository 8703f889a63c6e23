//! Sources that cannot be sent: refused before the remote shell runs.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::images;

use crate::ferry::{Ferry, folder};
use crate::scene::{Scene, says};

/// Sends `sources` with a remote shell that leaves a mark, returns the reason of the refusal.
#[track_caller]
fn refused(sources: &[&Path]) -> String {
    let scene = Scene::new(4096);
    let mark = scene.here.path().join("asked");
    let ferry = Ferry::local().rsh(format!("touch {}", mark.display())).args(sources.iter().copied());
    let reason = scene.send(&ferry).failed(3);
    assert!(!mark.exists(), "no host was asked");
    scene.untouched();
    reason
}

#[test]
fn a_missing_source_is_named() {
    let folder = folder();
    let missing = folder.path().join("no-such.img");
    says(&refused(&[&missing]), &[missing.to_str().unwrap(), "No such file or directory"]);
    let dangling = folder.path().join("dangling.img");
    symlink("nowhere", &dangling).unwrap();
    says(&refused(&[&dangling]), &[dangling.to_str().unwrap(), "No such file or directory"]);
}

#[test]
fn what_is_neither_file_nor_device_is_called_what_it_is() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, what) in
        [(folder.path(), "a folder"), (&fifo, "a FIFO"), (Path::new("/dev/null"), "a character device")]
    {
        says(
            &refused(&[path]),
            &[path.to_str().unwrap(), what, "an image must be a regular file or a block device"],
        );
    }
}

#[test]
fn one_bad_source_of_several_stops_all() {
    let folder = folder();
    let (good, bad) = (folder.path().join("good.img"), folder.path().join("bad.img"));
    images::random(&good, 4096, 1).unwrap();
    says(&refused(&[&good, &bad]), &[bad.to_str().unwrap()]);
}

#[test]
fn two_images_of_one_name_are_refused() {
    let folders = [folder(), folder()];
    let paths: Vec<PathBuf> = folders.iter().map(|f| f.path().join("disk.img")).collect();
    paths.iter().for_each(|p| images::random(p, 4096, 1).unwrap());
    says(&refused(&[&paths[0], &paths[1]]), &["two images are named 'disk.img'", "send them in two jobs"]);
}

#[test]
fn a_name_that_could_harm_the_other_side_is_refused() {
    let folder = folder();
    let odd = folder.path().join("line\nbreak.img");
    File::create(&odd).unwrap();
    says(&refused(&[&odd]), &["line\\nbreak.img", "cannot be the name of an image"]);
}
