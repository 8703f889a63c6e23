//! D6: one write of many fails while the others are still under way; what follows on the same ring
//! gets its own completions and its own buffers. (One end of it in `blockio`, with `/dev/full`.)

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use blockio::{Engine, EngineChoice, Image, Pool, SyncKind};
use testbed::faults::Faults;
use testbed::images;

use crate::ferry::folder;
use crate::scene::{Scene, fault_fs, says};

const MIB: u64 = 1 << 20;
const SLOW: Duration = Duration::from_millis(20);
const SLOT: usize = 64 << 10;
/// Writes at once.
const BATCH: usize = 32;
/// errno(3).
const EIO: i32 = 5;
/// The one that fails.
const BAD: usize = 11;

#[test]
fn d6_the_failed_write_is_the_one_that_is_named_and_the_next_job_is_right() {
    let place = folder();
    let bad = Faults { slow_writes: SLOW, write_error: Some(5 * MIB..5 * MIB + 1), ..Faults::default() };
    let disk = fault_fs(place.path(), Faults::default());
    let scene = Scene::new(16 * MIB).to(disk.path());
    // Too small to have that byte: another file on the ring, before and beside the one that fails.
    let small = scene.here.path().join("small.img");
    images::random(&small, 4 * MIB + 512, 2).unwrap();
    for engine in ["uring", "sync"] {
        for direct in [None, Some("--no-direct")] {
            disk.set(bad.clone());
            let ferry = scene.local().arg(&small).args(["--streams", "8", "--engine", engine]).args(direct);
            let reason = scene.send(&ferry).failed(1);
            let part = scene.there.join("disk.img.vmferry-part");
            says(
                &reason,
                &["there: cannot write", part.to_str().unwrap(), "at byte 5242880", "Input/output"],
            );
            // The small one was complete, or went.
            let copy = scene.there.join("small.img");
            if copy.exists() {
                says(&reason, &["already in place: small.img"]);
                images::equal(&small, &copy).unwrap();
                fs::remove_file(&copy).unwrap();
            }
            scene.untouched();
            disk.set(Faults { slow_writes: SLOW, ..Faults::default() });
            scene.send(&scene.local().args(["--verify", "readback", "--engine", engine]).args(direct)).done();
            scene.arrived();
            fs::remove_file(scene.there.join("disk.img")).unwrap();
        }
    }
}

fn create(folder: &Path, name: &str, direct: bool) -> Image {
    let opened = File::open(folder).unwrap();
    let size = (BATCH * SLOT) as u64;
    Image::create_at(opened.as_fd(), OsStr::new(name), &folder.join(name), size, direct).unwrap()
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

#[test]
fn d6_late_completions_are_not_taken_for_those_of_the_next_batch() {
    for choice in [EngineChoice::Uring, EngineChoice::Sync] {
        for direct in [true, false] {
            let place = folder();
            let at = (BAD * SLOT) as u64;
            let faults = Faults { slow_writes: SLOW, write_error: Some(at..at + 1), ..Faults::default() };
            let disk = fault_fs(place.path(), faults);
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let pool = Pool::new(BATCH, SLOT).unwrap();
                let engine = Engine::start(choice, BATCH as u32, &pool).unwrap();
                let first = create(disk.path(), "first", direct);
                let ended = batch(&engine, &pool, &first, 1, true).await;
                assert_eq!(ended.last(), Some(&(BAD, false)));
                assert!(ended.len() < BATCH, "the rest is under way still");
                disk.set(Faults { slow_writes: SLOW / 10, ..Faults::default() });
                // At once: the buffers of the first batch become free one by one.
                let second = create(disk.path(), "second", direct);
                let ended = batch(&engine, &pool, &second, 101, false).await;
                assert!(ended.len() == BATCH && ended.iter().all(|(_, good)| *good));
                engine.sync(&second, SyncKind::All).await.unwrap();
            });
            let [first, second] = ["first", "second"].map(|name| fs::read(disk.path().join(name)).unwrap());
            for i in 0..BATCH {
                let block = |file: &[u8]| file[i * SLOT..][..SLOT].to_vec();
                assert!(block(&second) == vec![101 + i as u8; SLOT], "{choice} {direct}: block {i}");
                let fill = if i == BAD { 0 } else { 1 + i as u8 };
                assert!(block(&first) == vec![fill; SLOT], "{choice} {direct}: block {i} of the first");
            }
        }
    }
}
