//! Random sequences of operations against a row of bytes in memory, on every engine.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::{Engine, Image, Pool, SyncKind};
use common::{block_on, create, folder, noise, one, ways};
use proptest::prelude::*;
use std::fs;

const SIZE: usize = 300_000;
const SLOT: usize = 64 << 10;

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, len: usize, seed: u64 },
    Read { offset: usize, len: usize },
    Zero { offset: usize, len: usize },
    Allocate { offset: usize, len: usize },
    Sync,
    Burst { start: usize, seed: u64 },
}

/// Offsets and lengths: half of them aligned, as those take another way.
fn place() -> impl Strategy<Value = (usize, usize)> {
    let offset = prop_oneof![0..SIZE, (0..SIZE / 4096).prop_map(|b| b * 4096)];
    let len = prop_oneof![0..=SLOT, (0..=SLOT / 4096).prop_map(|b| b * 4096)];
    (offset, len)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (place(), any::<u64>()).prop_map(|((offset, len), seed)| Step::Write { offset, len, seed }),
        4 => place().prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => place().prop_map(|(offset, len)| Step::Zero { offset, len }),
        1 => place().prop_map(|(offset, len)| Step::Allocate { offset, len }),
        1 => Just(Step::Sync),
        1 => (0..SIZE, any::<u64>()).prop_map(|(start, seed)| Step::Burst { start, seed }),
    ]
}

async fn apply(step: &Step, engine: &Engine, image: &Image, pool: &Pool, model: &mut [u8]) {
    match *step {
        Step::Write { offset, len, seed } => {
            let len = len.min(SIZE - offset);
            let mut buffer = pool.take().await;
            buffer[..len].copy_from_slice(&noise(len, seed));
            model[offset..offset + len].copy_from_slice(&buffer[..len]);
            engine.write(image, buffer, offset as u64, one(0..len)).await.1.unwrap();
        }
        Step::Read { offset, len } => {
            let (buffer, count) = engine.read(image, pool.take().await, offset as u64, len).await;
            let count = count.unwrap();
            assert_eq!(count, len.min(SIZE - offset));
            assert!(buffer[..count] == model[offset..offset + count]);
        }
        Step::Zero { offset, len } => {
            let end = (offset + len).min(SIZE);
            model[offset..end].fill(0);
            engine.zero(image, offset as u64..end as u64).await.unwrap();
        }
        Step::Allocate { offset, len } => {
            let end = (offset + len).min(SIZE);
            engine.allocate(image, offset as u64..end as u64).await.unwrap();
        }
        Step::Sync => engine.sync(image, SyncKind::Data).await.unwrap(),
        // Blocks that do not overlap, all under way at once.
        Step::Burst { start, seed } => {
            let mut writes = Vec::new();
            for (i, at) in (start / 4096 * 4096..SIZE - 4096).step_by(8192).take(12).enumerate() {
                let (engine, image, pool) = (engine.clone(), image.clone(), pool.clone());
                let bytes = noise(4096, seed.wrapping_add(i as u64));
                model[at..at + 4096].copy_from_slice(&bytes);
                writes.push(tokio::spawn(async move {
                    let mut buffer = pool.take().await;
                    buffer[..4096].copy_from_slice(&bytes);
                    engine.write(&image, buffer, at as u64, one(0..4096)).await.1
                }));
            }
            for write in writes {
                write.await.unwrap().unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn all_engines_agree_with_the_model(steps in prop::collection::vec(step(), 1..40)) {
        let dir = folder();
        let pool = Pool::new(4, SLOT).unwrap();
        for (choice, direct) in ways() {
            let (image, path) = create(&dir, &format!("{choice}-{direct}"), SIZE as u64, direct);
            let engine = Engine::start(choice, 3, &pool).unwrap();
            let mut model = vec![0; SIZE];
            block_on(async {
                for step in &steps {
                    apply(step, &engine, &image, &pool, &mut model).await;
                }
            });
            drop(engine);
            prop_assert_eq!(pool.free(), 4);
            prop_assert!(fs::read(&path).unwrap() == model, "{} {}", choice, direct);
        }
    }
}
