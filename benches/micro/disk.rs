//! Reads and writes of a file beside this program, through each engine, direct, out of the pool.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockio::{Engine, EngineChoice, Image, Pool};
use criterion::{BenchmarkId, Criterion, Throughput};
use tokio::runtime;
use tokio::task::JoinSet;

/// Size of the file, bytes: larger than what a disk's own cache answers at once.
const FILE: u64 = 256 << 20;

/// What is done again and again, one chunk at a time.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Read,
    Write,
}

pub fn all(c: &mut Criterion) {
    let program = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    testbed::images::random(&folder.path().join("file"), FILE, 7).unwrap();
    let image = open(folder.path());
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let chunk = crate::CHUNK;
    let mut group = c.benchmark_group("disk");
    group.throughput(Throughput::Bytes(chunk.bytes().into()));
    for choice in [EngineChoice::Uring, EngineChoice::Sync] {
        for verb in [Verb::Read, Verb::Write] {
            for depth in [1, 8] {
                let pool = Pool::new(depth, chunk.bytes() as usize).unwrap();
                let engine = Engine::start(choice, depth as u32, &pool).unwrap();
                let name = format!("{verb:?}-{choice}-depth-{depth}").to_lowercase();
                group.bench_function(BenchmarkId::new(name, chunk), |b| {
                    b.iter_custom(|count| runtime.block_on(work(&engine, &pool, &image, verb, count)));
                });
            }
        }
    }
    group.finish();
}

/// To read and to write, without the page cache.
fn open(folder: &Path) -> Image {
    let handle = File::open(folder).unwrap();
    let name = "file".as_ref();
    Image::open_at(handle.as_fd(), name, &folder.join("file"), true).unwrap()
}

/// The time of `count` operations, of which as many are under way as the pool has buffers.
async fn work(engine: &Engine, pool: &Pool, image: &Image, verb: Verb, count: u64) -> Duration {
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut hands = JoinSet::new();
    for _ in 0..pool.slots() {
        let (engine, pool, image, next) = (engine.clone(), pool.clone(), image.clone(), next.clone());
        hands.spawn(async move {
            let mut buffer = pool.take().await;
            let len = buffer.len();
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= count {
                    return;
                }
                let offset = turn * len as u64 % FILE;
                buffer = match verb {
                    Verb::Read => {
                        let (buffer, got) = engine.read(&image, buffer, offset, len).await;
                        assert_eq!(got.unwrap(), len);
                        buffer
                    }
                    Verb::Write => {
                        let whole = std::iter::once(0..len).collect();
                        let (buffer, done) = engine.write(&image, buffer, offset, whole).await;
                        done.unwrap();
                        buffer
                    }
                };
            }
        });
    }
    hands.join_all().await;
    started.elapsed()
}
