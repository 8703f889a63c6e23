//! D6: one write of many fails while the others are still under way; what follows on the same ring
//! gets its own completions and its own buffers. (One end of it in `blockio`, with `/dev/full`.)

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blockio::{Engine, EngineChoice, Image, Pool, SyncKind};
use testbed::disk::{Fs, LoopDisk};
use testbed::faults::Faults;
use testbed::images;

use crate::ferry::folder;
use crate::scene::{Attempt, Scene, fault_fs, says};

const MIB: u64 = 1 << 20;
const SLOW: Duration = Duration::from_millis(20);
const SLOT: usize = 64 << 10;
/// Writes at once.
const BATCH: usize = 32;
/// errno(3).
const EIO: i32 = 5;
/// The one that fails.
const BAD: usize = 11;

fn one_bad(at: u64) -> Faults {
    Faults { slow_writes: SLOW, write_error: Some(at..at + 1), ..Faults::default() }
}

fn all_slow() -> Faults {
    Faults { slow_writes: SLOW / 4, ..Faults::default() }
}

#[test]
fn d6_the_failed_write_is_the_one_that_is_named_and_the_next_job_is_right() {
    let place = folder();
    let disk = fault_fs(place.path(), Faults::default());
    let scene = Scene::new(16 * MIB).to(disk.path());
    // Too small to have that byte: another file before and beside the one that fails.
    let small = scene.here.path().join("small.img");
    images::random(&small, 4 * MIB + 512, 2).unwrap();
    for engine in ["uring", "sync"] {
        disk.set(one_bad(5 * MIB));
        let ferry = scene.local().arg(&small).args(["--streams", "8", "--engine", engine]);
        let reason = scene.send(&ferry).failed(1);
        let part = scene.there.join("disk.img.vmferry-part");
        says(&reason, &["there: cannot write", part.to_str().unwrap(), "at byte 5242880", "Input/output"]);
        // The small one was complete, or went, or is kept for the same command.
        let copy = scene.there.join("small.img");
        if copy.exists() {
            says(&reason, &["already in place: small.img"]);
            images::equal(&small, &copy).unwrap();
            fs::remove_file(&copy).unwrap();
        }
        scene.untouched();
        for kept in ["small.img.vmferry-part", "small.img.vmferry-ledger"] {
            let _ = fs::remove_file(scene.there.join(kept));
        }
        disk.set(all_slow());
        scene.send(&scene.local().args(["--verify", "readback", "--engine", engine])).done();
        scene.arrived();
        fs::remove_file(scene.there.join("disk.img")).unwrap();
    }
}

/// A device where each write is one of its own, and fails alone: neighbours are not merged.
fn device(folder: &Path, size: u64) -> LoopDisk {
    let disk = LoopDisk::new(folder, size, Fs::None, 512).unwrap();
    let name = disk.device().file_name().unwrap().to_str().unwrap();
    fs::write(format!("/sys/block/{name}/queue/nomerges"), "2").unwrap();
    disk
}

/// A device is written through the ring; files of a FUSE file system are not.
#[test]
fn d6_the_failed_write_to_a_device_is_the_one_that_is_named_and_the_next_job_is_right() {
    let place = folder();
    let fs = fault_fs(place.path(), Faults::default());
    let disk = device(fs.path(), 16 * MIB);
    let scene = Scene::new(16 * MIB);
    for engine in ["uring", "sync"] {
        let ferry = scene.local().args(["--force", "--streams", "8", "--engine", engine]);
        fs.set(one_bad(5 * MIB));
        let reason = Attempt::start(ferry.command(disk.device())).wait().failed(1);
        let device = disk.device().to_str().unwrap();
        says(&reason, &["there: cannot write", device, "at byte 5242880", "Input/output", "incomplete copy"]);
        fs.set(all_slow());
        let ferry = ferry.args(["--verify", "readback"]);
        assert_eq!(Attempt::start(ferry.command(disk.device())).wait().done()["engine"], engine);
        assert!(fs::read(disk.backing()).unwrap() == fs::read(&scene.image).unwrap());
        scene.untouched();
    }
}

/// Where a batch goes, and what goes with it.
struct Target {
    image: Image,
    path: PathBuf,
    _device: Option<LoopDisk>,
}

impl Target {
    const SIZE: u64 = (BATCH * SLOT) as u64;

    fn device(folder: &Path) -> Target {
        let device = device(folder, Target::SIZE);
        let image = Image::claim_device(device.device(), true).unwrap();
        assert!(image.direct());
        Target { image, path: device.backing().to_owned(), _device: Some(device) }
    }

    fn file(folder: &Path) -> Target {
        let (opened, path) = (File::open(folder).unwrap(), folder.join("file"));
        let _ = fs::remove_file(&path);
        let image = Image::create_at(opened.as_fd(), OsStr::new("file"), &path, Target::SIZE, true).unwrap();
        Target { image, path, _device: None }
    }
}

/// Starts a batch that writes `fill`, and returns how each of its writes ended; with `until_error`,
/// forgets the rest at the first error, as a job that fails does.
async fn batch(
    engine: &Engine,
    pool: &Pool,
    image: &Image,
    fill: u8,
    until_error: bool,
) -> Vec<(usize, bool)> {
    let mut writes = tokio::task::JoinSet::new();
    for i in 0..BATCH {
        let (engine, image) = (engine.clone(), image.clone());
        let mut buffer = pool.take().await;
        buffer.fill(fill + i as u8);
        writes.spawn(async move {
            let at = (i * SLOT) as u64;
            let (buffer, result) = engine.write(&image, buffer, at, std::iter::once(0..SLOT).collect()).await;
            assert!(buffer.iter().all(|byte| *byte == fill + i as u8), "its own buffer comes back");
            if let Err(e) = &result {
                assert_eq!((e.offset(), e.raw_os_error()), (Some(at), Some(EIO)));
            }
            (i, result.is_ok())
        });
    }
    let mut ended = Vec::new();
    while let Some(write) = writes.join_next().await {
        ended.push(write.unwrap());
        if until_error && !ended[ended.len() - 1].1 {
            break;
        }
    }
    ended
}

fn late_completions_stay_with_their_own(choice: EngineChoice, target: fn(&Path) -> Target) {
    let places = [folder(), folder()];
    let disks = [&places[0], &places[1]].map(|place| fault_fs(place.path(), Faults::default()));
    let [first, second] = [&disks[0], &disks[1]].map(|disk| target(disk.path()));
    disks[0].set(one_bad((BAD * SLOT) as u64));
    disks[1].set(all_slow());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let pool = Pool::new(BATCH, SLOT).unwrap();
        let engine = Engine::start(choice, BATCH as u32, &pool).unwrap();
        let ended = batch(&engine, &pool, &first.image, 1, true).await;
        assert_eq!(ended.last(), Some(&(BAD, false)));
        assert!(ended.len() < BATCH, "the rest is under way still");
        // At once: the buffers of the first batch become free one by one.
        let ended = batch(&engine, &pool, &second.image, 101, false).await;
        assert!(ended.len() == BATCH && ended.iter().all(|(_, good)| *good));
        for target in [&first, &second] {
            engine.sync(&target.image, SyncKind::All).await.unwrap();
        }
        // The engine ends here: what is under way still is carried out before.
    });
    let [first, second] = [first, second].map(|target| fs::read(&target.path).unwrap());
    for i in 0..BATCH {
        let block = |file: &[u8]| file[i * SLOT..][..SLOT].to_vec();
        assert!(block(&second) == vec![101 + i as u8; SLOT], "block {i}");
        let fill = if i == BAD { 0 } else { 1 + i as u8 };
        assert!(block(&first) == vec![fill; SLOT], "block {i} of the first");
    }
}

#[test]
fn d6_late_completions_of_the_ring_are_not_taken_for_those_of_the_next_batch() {
    late_completions_stay_with_their_own(EngineChoice::Uring, Target::device);
}

#[test]
fn d6_late_completions_of_threads_are_not_taken_for_those_of_the_next_batch() {
    late_completions_stay_with_their_own(EngineChoice::Sync, Target::device);
    late_completions_stay_with_their_own(EngineChoice::Uring, Target::file);
}
