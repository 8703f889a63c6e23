//! C7: a receiver that uses the page cache in little memory, before a slow disk: what is not written
//! yet must not pile up until it is killed for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use testbed::disk::{Fs, LoopDisk};

use crate::ferry::folder;
use crate::scene::Scene;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;

/// A group of processes with a limit to their memory, of either version of cgroups.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new(limit: u64) -> Group {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let of = |wanted: &dyn Fn(&[&str]) -> bool| {
            let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            lines.find(|fields| wanted(fields)).map(|fields| PathBuf::from(fields[1]))
        };
        let old = of(&|f| f[2] == "cgroup" && f[3].split(',').any(|option| option == "memory"));
        let new = of(&|f| f[2] == "cgroup2");
        let (root, file) = match (&old, &new) {
            (Some(root), _) => (root, "memory.limit_in_bytes"),
            (None, Some(root)) => (root, "memory.max"),
            (None, None) => panic!("no memory controller: mount -t cgroup2 none /sys/fs/cgroup"),
        };
        let group = Group { folder: root.join(format!("vmferry-test-{}", std::process::id())) };
        fs::create_dir(&group.folder).unwrap();
        fs::write(group.folder.join(file), limit.to_string()).unwrap();
        group
    }

    /// How many processes were killed for want of memory.
    fn killed(&self) -> u64 {
        let read = |file| fs::read_to_string(self.folder.join(file));
        let said = read("memory.oom_control").or_else(|_| read("memory.events")).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap().trim().parse().unwrap()
    }

    /// Bytes that were charged to it at most.
    fn peak(&self) -> u64 {
        let read = |file| fs::read_to_string(self.folder.join(file));
        let said = read("memory.max_usage_in_bytes").or_else(|_| read("memory.peak")).unwrap();
        said.trim().parse().unwrap()
    }

    /// A command that runs `program` in the group.
    fn command(&self, place: &Path, program: &str) -> String {
        let script = place.join("in-group");
        let procs = self.folder.join("cgroup.procs");
        let words = format!("#!/bin/sh\necho $$ > {} && exec {program} \"$@\"\n", procs.display());
        fs::write(&script, words).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        script.to_str().unwrap().into()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails as long as a process is in it.
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn c7_a_buffered_copy_to_a_slow_disk_in_little_memory() {
    let place = folder();
    let mut disk = LoopDisk::new(place.path(), 1300 * MIB, Fs::Ext4, 512).unwrap();
    disk.write_cap(Some(90 * MIB)).unwrap();
    let group = Group::new(LIMIT);
    let scene = Scene::new(1024 * MIB).to(disk.folder().unwrap());
    let ferry = scene.local().args(["--no-direct", "--streams", "8", "--transport", "tcp"]);
    let sent = scene.send(&ferry.remote_path(group.command(place.path(), &scene.peer())));
    assert_eq!(group.killed(), 0, "{}\n{}", sent.stdout, sent.stderr);
    sent.done();
    scene.arrived();
    assert!(group.peak() > LIMIT / 4, "{} bytes: the receiver was not in the group", group.peak());
}
