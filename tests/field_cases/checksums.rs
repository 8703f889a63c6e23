//! C2, C3: file systems that keep checksums: no buffer changes while it is written, nothing is
//! written twice at once, and a reader meanwhile disturbs nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use crate::ferry::folder;
use crate::scene::Scene;
use crate::watch::tool;

const MIB: u64 = 1 << 20;
/// As many small writes under way as there can be.
const BUSY: [&str; 6] = ["--streams", "8", "--chunk", "64K", "--sync-window", "8M"];

fn disk(place: &Path, fs: Fs) -> LoopDisk {
    LoopDisk::new(place, 512 * MIB, fs, 512).unwrap()
}

/// Every block of the file system is what its checksum says.
#[track_caller]
fn scrubbed(folder: &Path) {
    let shown = tool(Command::new("btrfs").args(["scrub", "start", "-B"]).arg(folder));
    assert!(shown.contains("no errors found"), "{shown}");
}

fn attributes(file: &Path) -> String {
    tool(Command::new("lsattr").args(["-d"]).arg(file)).split_whitespace().next().unwrap().to_owned()
}

#[test]
fn c2_btrfs_finds_every_block_right() {
    let place = folder();
    let disk = disk(place.path(), Fs::Btrfs);
    let there = disk.folder().unwrap();
    for (name, options) in [("direct", &[][..]), ("buffered", &["--no-direct"])] {
        let to = there.join(name);
        fs::create_dir(&to).unwrap();
        let scene = Scene::new(64 * MIB + 513).to(&to);
        scene.send(&scene.local().args(BUSY).args(options.iter().copied())).done();
        scene.arrived();
        assert!(!attributes(&to.join("disk.img")).contains('C'));
    }
    scrubbed(there);
}

/// Without copy on write, as libvirt sets up its pools: the copy is as its folder wants it.
#[test]
fn c2_a_folder_without_copy_on_write_gets_such_copies() {
    let place = folder();
    let disk = disk(place.path(), Fs::Btrfs);
    let to = disk.folder().unwrap().join("images");
    fs::create_dir(&to).unwrap();
    tool(Command::new("chattr").arg("+C").arg(&to));
    let scene = Scene::new(64 * MIB + 513).to(&to);
    for force in [None, Some("--force")] {
        scene.send(&scene.local().args(BUSY).args(force)).done();
        scene.arrived();
        assert!(attributes(&to.join("disk.img")).contains('C'), "{}", attributes(&to.join("disk.img")));
    }
    scrubbed(disk.folder().unwrap());
}

/// Somebody reads the copy while it grows, through the page cache and around it.
fn read_meanwhile(fs: Fs) {
    let place = folder();
    let disk = disk(place.path(), fs);
    let there = disk.folder().unwrap();
    let scene = Scene::new(96 * MIB).to(there);
    let (part, end) = (there.join("disk.img.vmferry-part"), AtomicBool::new(false));
    let reads = thread::scope(|scope| {
        let (part, end) = (&part, &end);
        let readers = [&[][..], &["iflag=direct"]].map(|flags: &[&str]| {
            scope.spawn(move || {
                let mut reads = 0;
                while !end.load(Ordering::Relaxed) {
                    let words = ["of=/dev/null", "bs=128K", "status=none"];
                    let from = format!("if={}", part.display());
                    let dd = Command::new("dd").args(words).arg(from).args(flags).output().unwrap();
                    // There is no such file before and after.
                    reads += u32::from(dd.status.success());
                }
                reads
            })
        });
        let sent = scene.send(&scene.local().args(BUSY).args(["--limit", "60MiB/s", "--verify", "readback"]));
        end.store(true, Ordering::Relaxed);
        sent.done();
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(reads.iter().all(|count| *count > 0), "the copy was read: {reads:?}");
    scene.arrived();
    images::equal(&scene.image, &there.join("disk.img")).unwrap();
    if fs == Fs::Btrfs {
        scrubbed(there);
    }
}

#[test]
fn c3_a_reader_of_the_growing_copy_on_btrfs() {
    read_meanwhile(Fs::Btrfs);
}

#[test]
fn c3_a_reader_of_the_growing_copy_on_ext4() {
    read_meanwhile(Fs::Ext4);
}
