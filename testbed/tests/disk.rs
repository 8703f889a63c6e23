//! Loop disks: sector sizes, file systems, caps, power loss.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use testbed::disk::{Caps, Fs, LoopDisk};

const MIB: u64 = 1 << 20;

fn disk(folder: &Path, size: u64, fs: Fs) -> LoopDisk {
    LoopDisk::new(folder, size, fs, 512).expect("a disk")
}

#[test]
fn every_file_system_is_mounted_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    for fs in [Fs::Ext4, Fs::Ext4NoJournal, Fs::Btrfs, Fs::Xfs] {
        let mut disk = disk(folder.path(), 320 * MIB, fs);
        let file = disk.folder().expect("is mounted").join("file");
        fs::write(&file, "content").expect("writes");
        disk.remount().expect("remounts");
        assert_eq!(fs::read_to_string(&file).expect("reads"), "content", "{fs:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 0);
}

#[test]
fn a_4k_sector_disk_refuses_smaller_direct_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = LoopDisk::new(folder.path(), 8 * MIB, Fs::None, 4096).expect("a disk");
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let file = options.open(disk.device()).expect("opens");
    let mut buffer = vec![0; 8192];
    let start = buffer.as_ptr().align_offset(4096);
    let refused = file.read_at(&mut buffer[start..start + 512], 0).expect_err("is refused");
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(file.read_at(&mut buffer[start..start + 4096], 0).expect("reads"), 4096);
    assert!(disk.folder().is_err());
}

#[test]
fn power_loss_keeps_what_was_flushed_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disk = disk(folder.path(), 64 * MIB, Fs::Ext4);
    let root = disk.folder().expect("is mounted").to_owned();
    let write = |name: &str, flush: bool| {
        let file = File::create(root.join(name)).expect("creates");
        file.write_all_at(&vec![7; 100_000], 0).expect("writes");
        if flush {
            file.sync_all().expect("flushes");
        }
    };
    write("flushed", true);
    File::open(&root).expect("opens").sync_all().expect("flushes the folder");
    write("lost", false);
    disk.power_loss().expect("loses power");
    assert_eq!(fs::read(root.join("flushed")).expect("reads"), vec![7; 100_000]);
    assert!(!root.join("lost").exists());
}

#[test]
fn caps_hold_for_the_group_and_for_all_others_and_are_lifted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disk = disk(folder.path(), 64 * MIB, Fs::None);
    let cap = 8 * MIB;
    disk.write_cap(Some(cap)).expect("caps");
    let target = format!("of={}", disk.device().display());
    let size = 4 * MIB;
    let arguments = ["if=/dev/zero", &target, "bs=256k", "count=16", "oflag=direct"];
    let group = disk.command_in_cap_group("dd").expect("a command");
    for mut command in [group, std::process::Command::new("dd")] {
        let start = Instant::now();
        let output = command.args(arguments).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        // The controller lets the first slice through at once; it never speeds up.
        let least = Duration::from_secs_f64(size as f64 / cap as f64 / 2.0);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    }
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("runs");
    disk.cap_process(sleeper.id()).expect("is admitted");
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", sleeper.id())).expect("reads");
    assert!(groups.contains("vmf-"), "{groups}");
    disk.set_caps(Caps::default()).expect("lifts");
    drop(disk);
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", sleeper.id())).expect("reads");
    assert!(!groups.contains("vmf-"), "{groups}");
    sleeper.kill().expect("ends");
    sleeper.wait().expect("ended");
}
