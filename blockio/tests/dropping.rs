//! Futures and engines that are dropped with operations under way.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::{Engine, Pool};
use common::{block_on, create, folder, one, ways};
use std::fs;
use std::pin::pin;
use std::task::{Context, Waker};

const SLOT: usize = 256 << 10;
const SLOTS: usize = 32;

/// Starts one write per slot and forgets each at once.
async fn start_and_drop(engine: &Engine, image: &blockio::Image, pool: &Pool, fill: u8) {
    for i in 0..SLOTS {
        let mut buffer = pool.take().await;
        buffer.fill(fill);
        let write = engine.write(image, buffer, (i * SLOT) as u64, one(0..SLOT));
        let mut write = pin!(write);
        let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

#[test]
fn dropped_futures_run_to_their_end() {
    let dir = folder();
    for (choice, direct) in ways() {
        let size = SLOT * SLOTS;
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), size as u64, direct);
        let pool = Pool::new(SLOTS, SLOT).unwrap();
        let engine = Engine::start(choice, 8, &pool).unwrap();
        block_on(async {
            for fill in [1, 2] {
                start_and_drop(&engine, &image, &pool, fill).await;
                // All buffers are out or on their way back: these wait for the completions.
                let mut all = Vec::new();
                for _ in 0..SLOTS {
                    all.push(pool.take().await);
                }
            }
        });
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 2), "{choice} {direct}");
    }
}

#[test]
fn a_dropped_engine_is_drained() {
    let dir = folder();
    for (choice, direct) in ways() {
        for round in 0..10 {
            let size = SLOT * SLOTS;
            let name = format!("{choice}-{direct}-{round}");
            let (image, path) = create(&dir, &name, size as u64, direct);
            let pool = Pool::new(SLOTS, SLOT).unwrap();
            let engine = Engine::start(choice, 4, &pool).unwrap();
            block_on(start_and_drop(&engine, &image, &pool, 3));
            drop(engine);
            assert_eq!(pool.free(), SLOTS);
            assert!(fs::read(&path).unwrap().iter().all(|b| *b == 3), "{name}");
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn pool_and_image_may_go_first() {
    let dir = folder();
    for (choice, direct) in ways() {
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), 8 << 20, direct);
        let pool = Pool::new(SLOTS, SLOT).unwrap();
        let engine = Engine::start(choice, 4, &pool).unwrap();
        block_on(start_and_drop(&engine, &image, &pool, 4));
        drop(image);
        drop(pool);
        drop(engine);
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 4));
    }
}

#[test]
fn many_threads_one_engine() {
    let dir = folder();
    for (choice, direct) in ways() {
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), 64 << 20, direct);
        let pool = Pool::new(6, SLOT).unwrap();
        let engine = Engine::start(choice, 4, &pool).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (engine, image, pool) = (engine.clone(), &image, &pool);
                scope.spawn(move || {
                    block_on(async {
                        for i in 0..64 {
                            let at = ((i * 4 + thread) * SLOT) as u64;
                            let mut buffer = pool.take().await;
                            buffer.fill(thread as u8 + 1);
                            engine.write(image, buffer, at, one(0..SLOT)).await.1.unwrap();
                            let (buffer, n) = engine.read(image, pool.take().await, at, SLOT).await;
                            assert_eq!(n.unwrap(), SLOT);
                            assert!(buffer.iter().all(|b| *b == thread as u8 + 1));
                        }
                    });
                });
            }
        });
        let bytes = fs::read(&path).unwrap();
        for (i, part) in bytes.chunks(SLOT).enumerate() {
            assert!(part.iter().all(|b| *b == (i % 4) as u8 + 1));
        }
    }
}
