//! The faulty file system answers as told, and truthfully otherwise.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom, fallocate, renameat_with, seek};
use rustix::io::Errno;
use testbed::faults::{DirectIo, Fallocate, FaultFs, Faults};

const KIB: usize = 1024;

struct Bed {
    // Dropped in this order: the mount before the folders.
    fs: FaultFs,
    backing: tempfile::TempDir,
    _mountpoint: tempfile::TempDir,
}

fn bed(faults: Faults) -> Bed {
    let backing = tempfile::tempdir().expect("a folder");
    let mountpoint = tempfile::tempdir().expect("a folder");
    let fs = FaultFs::mount(backing.path(), mountpoint.path(), faults).expect("mounts");
    Bed { fs, backing, _mountpoint: mountpoint }
}

impl Bed {
    fn path(&self) -> PathBuf {
        self.fs.path().join("file")
    }

    fn file(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.path()).expect("opens")
    }

    fn direct(&self) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(libc::O_DIRECT).open(self.path())
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Aligned enough for direct I/O on any disk.
fn aligned(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    buffer.resize(length + 4096, 0x5a);
    let start = buffer.as_ptr().align_offset(4096);
    &mut buffer[start..start + length]
}

#[test]
fn without_faults_it_is_an_ordinary_file_system() {
    let bed = bed(Faults::default());
    let root = bed.fs.path();
    fs::create_dir(root.join("folder")).expect("a folder");
    fs::write(root.join("folder/a"), "content").expect("writes");
    fs::rename(root.join("folder"), root.join("moved")).expect("renames");
    assert_eq!(fs::read_to_string(root.join("moved/a")).expect("reads"), "content");
    std::os::unix::fs::symlink("moved/a", root.join("link")).expect("links");
    assert_eq!(fs::read_to_string(root.join("link")).expect("reads"), "content");
    fs::write(root.join("b"), "other").expect("writes");
    let kept = renameat_with(
        rustix::fs::CWD,
        root.join("moved/a"),
        rustix::fs::CWD,
        root.join("b"),
        RenameFlags::NOREPLACE,
    );
    assert_eq!(kept, Err(Errno::EXIST));
    let mut names: Vec<_> =
        fs::read_dir(root).expect("lists").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["b", "link", "moved"]);

    let file = bed.file();
    file.write_all_at(&[1; 4096], 1 << 20).expect("writes");
    file.set_len(2 << 20).expect("grows");
    assert_eq!(seek(&file, SeekFrom::Data(0)).expect("seeks"), 1 << 20);
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, holes, 1 << 20, 4096).expect("punches");
    assert_eq!(file.metadata().expect("metadata").blocks(), 0);
    fs::remove_file(bed.path()).expect("removes");
    assert_eq!(file.metadata().expect("an open file lives on").len(), 2 << 20);
    file.set_len(0).expect("shrinks");
    assert_eq!(fs::read_dir(bed.backing.path()).expect("lists").count(), 3);
}

#[test]
fn direct_io_works_or_is_refused_where_told() {
    let bed = bed(Faults::default());
    let mut buffer = Vec::new();
    let page = aligned(&mut buffer, 4096);
    let file = bed.direct().expect("opens");
    file.write_all_at(page, 0).expect("writes");
    file.read_exact_at(page, 0).expect("reads");
    assert_eq!(bed.fs.counts().direct_writes, 1);

    bed.fs.set(Faults { direct: DirectIo::RefusedAtWrite, ..Faults::default() });
    let file = bed.direct().expect("opens");
    assert_eq!(errno(file.write_at(page, 0)), Some(libc::EINVAL));
    bed.file().write_all_at(page, 0).expect("writes without O_DIRECT");
    file.read_exact_at(page, 0).expect("reads");

    bed.fs.set(Faults { direct: DirectIo::RefusedAtRead, ..Faults::default() });
    assert_eq!(errno(file.read_at(page, 0)), Some(libc::EINVAL));
    file.write_all_at(page, 0).expect("writes");

    bed.fs.set(Faults { direct: DirectIo::RefusedAtOpen, ..Faults::default() });
    assert_eq!(errno(bed.direct()), Some(libc::EINVAL));
    fs::remove_file(bed.path()).expect("removes");
    assert_eq!(errno(bed.direct()), Some(libc::EINVAL));
    assert!(!bed.path().exists(), "a refused open creates nothing");
    bed.file();
}

#[test]
fn fallocate_fails_as_told() {
    let bed = bed(Faults { fallocate: Fallocate::Unsupported, ..Faults::default() });
    let file = bed.file();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    for mode in [FallocateFlags::empty(), punch, zero] {
        assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    bed.fs.set(Faults { fallocate: Fallocate::NoZeroRange, ..Faults::default() });
    assert_eq!(fallocate(&file, zero, 0, 4096), Err(Errno::OPNOTSUPP));
    fallocate(&file, FallocateFlags::empty(), 0, 4096).expect("preallocates");
    bed.fs.set(Faults { fallocate: Fallocate::NoSpace, ..Faults::default() });
    let preallocated = fallocate(&file, FallocateFlags::empty(), 0, 8192);
    assert_eq!(preallocated, Err(Errno::NOSPC));
    bed.fs.set(Faults::default());
    fallocate(&file, zero, 0, 8192).expect("zeroes");
    assert_eq!(bed.fs.counts().fallocates, 7);
}

#[test]
fn a_full_file_looks_empty() {
    let bed = bed(Faults { no_data: true, ..Faults::default() });
    let file = bed.file();
    file.write_all_at(&vec![1; 64 * KIB], 0).expect("writes");
    assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    bed.fs.set(Faults::default());
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(0));
}

#[test]
fn fsync_fails_once_and_then_succeeds() {
    let bed = bed(Faults { failing_fsyncs: 1, ..Faults::default() });
    let file = bed.file();
    file.write_all_at(&[1; 4096], 0).expect("writes");
    assert_eq!(errno(file.sync_data()), Some(libc::EIO));
    file.sync_data().expect("the second succeeds");
    file.sync_all().expect("so does the third");
    File::open(bed.fs.path()).expect("opens").sync_all().expect("the folder too");
    let counts = bed.fs.counts();
    assert_eq!((counts.fsyncs, counts.folder_fsyncs), (3, 1));
}

#[test]
fn space_runs_out_after_a_short_write() {
    let bed = bed(Faults { space: Some(10_000), ..Faults::default() });
    let file = bed.file();
    assert_eq!(file.write_at(&[1; 4096], 0).expect("fits"), 4096);
    assert_eq!(file.write_at(&[1; 8192], 4096).expect("fits in part"), 10_000 - 4096);
    assert_eq!(errno(file.write_at(&[1; 1], 10_000)), Some(libc::ENOSPC));
    assert_eq!(bed.fs.counts().written_bytes, 10_000);
}

#[test]
fn reads_and_writes_are_short() {
    let faults = Faults { short_reads: Some(1000), short_writes: Some(3000), ..Faults::default() };
    let bed = bed(faults);
    let file = bed.file();
    assert_eq!(file.write_at(&[1; 8192], 0).expect("writes"), 3000);
    file.write_all_at(&[2; 8192], 0).expect("writes on");
    assert_eq!(file.read_at(&mut [0; 8192], 0).expect("reads"), 1000);
    let mut all = Vec::new();
    File::open(bed.path()).expect("opens").read_to_end(&mut all).expect("reads on");
    assert_eq!(all, [2; 8192]);

    let mut buffer = Vec::new();
    let page = aligned(&mut buffer, 4096);
    let direct = bed.direct().expect("opens");
    assert_eq!(direct.read_at(page, 0).expect("reads"), 1000);
}

#[test]
fn bad_places_fail_and_others_do_not() {
    let faults = Faults {
        read_error: Some(8192..8193),
        write_error: Some(16384..20480),
        corrupt_writes_at: Some(5),
        ..Faults::default()
    };
    let bed = bed(faults);
    let file = bed.file();
    file.write_all_at(&[0x0f; 16384], 0).expect("writes before the bad place");
    assert_eq!(errno(file.write_at(&[0; 4096], 16384)), Some(libc::EIO));
    assert_eq!(errno(file.read_at(&mut [0; 4096], 8192)), Some(libc::EIO));
    let mut start = [0; 8];
    file.read_exact_at(&mut start, 0).expect("reads elsewhere");
    assert_eq!(start, [0x0f, 0x0f, 0x0f, 0x0f, 0x0f, 0xf0, 0x0f, 0x0f]);
}

#[test]
fn a_stalled_read_waits_until_the_faults_change() {
    let bed = bed(Faults { stalled_reads: Some(4096..8192), ..Faults::default() });
    let file = bed.file();
    file.write_all_at(&[1; 16384], 0).expect("writes");
    file.read_exact_at(&mut [0; 4096], 0).expect("reads elsewhere");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| file.read_at(&mut [0; 4096], 4096));
        let end = Instant::now() + Duration::from_secs(10);
        while bed.fs.stalled() == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(bed.fs.stalled(), 1);
        file.read_exact_at(&mut [0; 4096], 8192).expect("others are served meanwhile");
        assert!(!reader.is_finished());
        bed.fs.set(Faults::default());
        assert_eq!(errno(reader.join().expect("no panic")), Some(libc::EIO));
    });
}

#[test]
fn it_is_unmounted_even_with_an_open_file() {
    let bed = bed(Faults::default());
    let path = bed.path();
    let file = bed.file();
    file.write_all_at(b"x", 0).expect("writes");
    let Bed { fs, backing, _mountpoint } = bed;
    drop(fs);
    assert_eq!(File::open(&path).expect_err("is gone").kind(), ErrorKind::NotFound);
    assert!(backing.path().join("file").exists());
    drop(file);
}

fn volatile() -> Bed {
    let backing = tempfile::tempdir().expect("a folder");
    fs::create_dir(backing.path().join("disk")).expect("a folder");
    let mountpoint = tempfile::tempdir().expect("a folder");
    let fs = FaultFs::mount_volatile(&backing.path().join("disk"), mountpoint.path(), Faults::default());
    Bed { fs: fs.expect("mounts"), backing, _mountpoint: mountpoint }
}

fn sync_folder(bed: &Bed) {
    File::open(bed.fs.path()).expect("opens").sync_all().expect("syncs");
}

/// What a file holds after the power was lost, block by block: 1 is old, 2 is new.
fn blocks_after(synced: bool, seed: u64) -> Vec<u8> {
    let bed = volatile();
    let file = bed.file();
    file.write_all_at(&vec![1; 64 * KIB], 0).expect("writes");
    file.sync_data().expect("syncs");
    sync_folder(&bed);
    file.write_all_at(&vec![2; 32 * KIB], 16 * KIB as u64).expect("writes");
    if synced {
        file.sync_data().expect("syncs");
    }
    bed.fs.power_loss(seed).expect("loses power");
    assert_eq!(errno(file.write_at(&[3], 0)), Some(libc::EBADF), "nobody outlives it");
    let bytes = fs::read(bed.path()).expect("reads");
    bytes
        .chunks(512)
        .for_each(|sector| assert!(sector.iter().all(|byte| *byte == sector[0]), "whole sectors"));
    bytes.chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn synced_data_survive_a_loss_of_power_and_others_do_not_always() {
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for seed in 0..24 {
        let sectors = blocks_after(true, seed);
        assert!(sectors[32..96].iter().all(|byte| *byte == 2), "seed {seed}");
        let sectors = blocks_after(false, seed);
        assert!(sectors[..32].iter().chain(&sectors[96..]).all(|byte| *byte == 1), "seed {seed}");
        for block in sectors[32..96].chunks(8) {
            match (block.contains(&1), block.contains(&2)) {
                (true, false) => old += 1,
                (false, true) => new += 1,
                _ => torn += 1,
            }
        }
    }
    assert!(old > 0 && new > 0 && torn > 0, "{old} old, {new} new, {torn} torn");
    assert_eq!(blocks_after(false, 5), blocks_after(false, 5), "a seed is a seed");
}

#[test]
fn names_survive_in_their_order_unless_their_folder_was_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..32 {
        let bed = volatile();
        let at = |name: &str| bed.fs.path().join(name);
        for name in ["a", "b"] {
            fs::write(at(name), name).expect("writes");
            File::open(at(name)).expect("opens").sync_all().expect("syncs");
        }
        sync_folder(&bed);
        // Three changes: a replaces b, c appears, a goes.
        fs::rename(at("a"), at("b")).expect("renames");
        fs::write(at("c"), "").expect("writes");
        fs::remove_file(at("b")).expect("removes");
        bed.fs.power_loss(seed).expect("loses power");
        let now = ["a", "b", "c"].map(|name| fs::read_to_string(at(name)).ok());
        let now: Vec<&str> = now.iter().map(|content| content.as_deref().unwrap_or("-")).collect();
        seen.insert(now.join(" "));
    }
    let possible = ["a b -", "- a -", "- a ", "- - "];
    assert!(seen.iter().all(|now| possible.contains(&now.as_str())), "{seen:?}");
    assert_eq!(seen.len(), possible.len(), "{seen:?}");

    for seed in 0..8 {
        let bed = volatile();
        let at = |name: &str| bed.fs.path().join(name);
        fs::write(at("a"), "a").expect("writes");
        File::open(at("a")).expect("opens").sync_all().expect("syncs");
        fs::rename(at("a"), at("b")).expect("renames");
        sync_folder(&bed);
        bed.fs.power_loss(seed).expect("loses power");
        assert_eq!(fs::read_to_string(at("b")).expect("reads"), "a");
        assert!(!at("a").exists());
    }
}

#[test]
fn what_a_failed_sync_lost_no_later_one_brings_back() {
    for seed in 0..8 {
        let bed = volatile();
        let file = bed.file();
        sync_folder(&bed);
        file.write_all_at(&[7; 4096], 0).expect("writes");
        bed.fs.set(Faults { failing_fsyncs: 1, ..Faults::default() });
        assert_eq!(errno(file.sync_data()), Some(libc::EIO));
        file.write_all_at(&[8; 4096], 4096).expect("writes");
        file.sync_data().expect("syncs");
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, 0).expect("reads");
        assert_eq!(page, [7; 4096], "it looks as if it were there");
        bed.fs.power_loss(seed).expect("loses power");
        assert_eq!(fs::read(bed.path()).expect("reads"), [[0; 4096], [8; 4096]].concat());
    }
}

#[test]
fn a_size_and_what_was_punched_come_back_or_not() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let bed = volatile();
        let file = bed.file();
        file.write_all_at(&[1; 8192], 0).expect("writes");
        file.sync_all().expect("syncs");
        sync_folder(&bed);
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, holes, 0, 4096).expect("punches");
        file.set_len(4096).expect("shrinks");
        bed.fs.power_loss(seed).expect("loses power");
        let bytes = fs::read(bed.path()).expect("reads");
        seen.insert((bytes.len(), bytes[0], bytes[4095]));
    }
    for wanted in [(8192, 1, 1), (4096, 0, 0)] {
        assert!(seen.contains(&wanted), "{seen:?}");
    }
}
