//! Reads, writes, zeros and syncs: the same on every engine, direct or not.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::{Engine, EngineChoice, EngineKind, Image, Pool, SyncKind};
use common::{SLOT, block_on, create, folder, noise, one, put, ways};
use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

#[test]
fn choices_have_names() {
    for name in ["auto", "uring", "sync"] {
        assert_eq!(name.parse::<EngineChoice>().unwrap().to_string(), name);
    }
    let error = "aio".parse::<EngineChoice>().unwrap_err();
    assert_eq!(error.to_string(), "unknown engine \"aio\": auto, uring or sync");
    let pool = Pool::new(1, 4096).unwrap();
    let engine = Engine::start(EngineChoice::Sync, 2, &pool).unwrap();
    assert_eq!((engine.kind(), engine.kind().as_str()), (EngineKind::Sync, "sync"));
    assert!(engine.notices().is_empty());
}

/// Odd sizes, written by chunks with a padded or an unpadded tail, come back to the byte.
#[test]
fn tails() {
    let dir = folder();
    for (choice, direct) in ways() {
        for size in [0, 1, 511, 513, 4096, 123_457, SLOT - 1, SLOT, SLOT + 1, 2 * SLOT + 4097] {
            for padded in [false, true] {
                let bytes = noise(size, size as u64);
                let name = format!("{choice}-{direct}-{size}-{padded}");
                let (image, path) = create(&dir, &name, size as u64, direct);
                assert_eq!(image.direct(), direct);
                let pool = Pool::new(2, SLOT).unwrap();
                let engine = Engine::start(choice, 2, &pool).unwrap();
                block_on(async {
                    for (i, part) in bytes.chunks(SLOT).enumerate() {
                        let mut buffer = pool.take().await;
                        buffer.fill(0);
                        buffer[..part.len()].copy_from_slice(part);
                        let len =
                            if padded { part.len().next_multiple_of(image.align()) } else { part.len() };
                        let at = (i * SLOT) as u64;
                        engine.write(&image, buffer, at, one(0..len)).await.1.unwrap();
                    }
                    image.set_len(size as u64).unwrap();
                    engine.sync(&image, SyncKind::Data).await.unwrap();
                    engine.sync(&image, SyncKind::All).await.unwrap();
                });
                assert!(fs::read(&path).unwrap() == bytes, "{name}");

                let source = Image::open_source(&path, direct).unwrap();
                assert_eq!((source.size(), source.direct()), (size as u64, direct));
                let mut back = Vec::new();
                block_on(async {
                    for at in (0..=size).step_by(SLOT) {
                        let buffer = pool.take().await;
                        let (buffer, count) = engine.read(&source, buffer, at as u64, SLOT).await;
                        let count = count.unwrap();
                        assert_eq!(count, SLOT.min(size - at), "short only at the end");
                        back.extend_from_slice(&buffer[..count]);
                    }
                });
                assert!(back == bytes, "{name}");
                assert_eq!(pool.free(), 2);
                assert!(source.take_notices().is_empty() && image.take_notices().is_empty());
            }
        }
    }
}

#[test]
fn a_read_inside_gives_no_byte_too_many() {
    let dir = folder();
    let path = dir.path().join("a");
    let bytes = noise(100_000, 3);
    put(&path, &bytes);
    for (choice, direct) in ways() {
        let pool = Pool::new(1, SLOT).unwrap();
        let engine = Engine::start(choice, 1, &pool).unwrap();
        let image = Image::open_source(&path, direct).unwrap();
        block_on(async {
            for (offset, len) in [(0, 1), (4096, 5000), (17, 4096), (99_999, 10), (100_000, 1), (8192, 0)] {
                let (buffer, count) = engine.read(&image, pool.take().await, offset as u64, len).await;
                let count = count.unwrap();
                let end = (offset + len).min(bytes.len());
                assert_eq!(count, end - offset);
                assert!(buffer[..count] == bytes[offset..end]);
            }
        });
    }
}

#[test]
fn segments_go_where_they_belong_and_leave_the_rest() {
    let dir = folder();
    for (choice, direct) in ways() {
        let size = 3 * SLOT;
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), size as u64, direct);
        put(&path, &noise(size, 9));
        let mut model = noise(size, 9);
        let pool = Pool::new(1, SLOT).unwrap();
        let engine = Engine::start(choice, 2, &pool).unwrap();
        block_on(async {
            // Aligned, unaligned head and tail, empty, inside one block, and out of order.
            let segments = vec![8192..65536, 4100..4200, 0..0, 70_000..200_001, SLOT - 1..SLOT, 0..5];
            for offset in [0, SLOT, SLOT + 512] {
                let mut buffer = pool.take().await;
                buffer.copy_from_slice(&noise(SLOT, offset as u64));
                for s in &segments {
                    model[offset + s.start..offset + s.end].copy_from_slice(&buffer[s.clone()]);
                }
                let (_, result) = engine.write(&image, buffer, offset as u64, segments.clone()).await;
                result.unwrap();
            }
            engine.sync(&image, SyncKind::Data).await.unwrap();
        });
        assert!(fs::read(&path).unwrap() == model, "{choice} {direct}");
    }
}

#[test]
fn zero_on_dirty_data() {
    let dir = folder();
    for (choice, direct) in ways() {
        let size = 4 * SLOT + 777;
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), size as u64, direct);
        let mut model = noise(size, 5);
        put(&path, &model);
        image.sync_before_map().unwrap();
        let before = image.allocated().unwrap();
        let pool = Pool::new(1, SLOT).unwrap();
        let engine = Engine::start(choice, 2, &pool).unwrap();
        let end = size as u64;
        block_on(async {
            for range in
                [5..6, 4096..8192, 10_000..20_001, SLOT as u64..2 * SLOT as u64, end - 1000..end + 9000, 7..7]
            {
                model[range.start as usize..(range.end as usize).min(size)].fill(0);
                engine.zero(&image, range).await.unwrap();
            }
            engine.sync(&image, SyncKind::All).await.unwrap();
        });
        assert!(fs::read(&path).unwrap() == model, "{choice} {direct}");
        assert!(image.allocated().unwrap() + SLOT as u64 <= before, "space is freed");
    }
}

#[test]
fn a_huge_hole_takes_no_time() {
    let dir = folder();
    let (image, _) = create(&dir, "huge", 8 << 40, true);
    let pool = Pool::new(1, SLOT).unwrap();
    for choice in [EngineChoice::Auto, EngineChoice::Sync] {
        let engine = Engine::start(choice, 2, &pool).unwrap();
        let start = Instant::now();
        block_on(engine.zero(&image, 0..8 << 40)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(image.next_data(0).unwrap(), None);
    }
}

#[test]
fn allocate_reserves_and_changes_nothing() {
    let dir = folder();
    for (choice, direct) in ways() {
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), 8 << 20, direct);
        let pool = Pool::new(1, SLOT).unwrap();
        let engine = Engine::start(choice, 2, &pool).unwrap();
        if !block_on(engine.allocate(&image, 0..8 << 20)).unwrap() {
            return;
        }
        assert!(image.allocated().unwrap() >= 8 << 20);
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 0));
        let beyond = (1 << 60)..(1 << 60) + 4096;
        let error = block_on(engine.allocate(&image, beyond)).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::FileTooLarge, Some(1 << 60)));
    }
}

#[test]
fn what_can_not_be_asked_for() {
    let dir = folder();
    for (choice, direct) in ways() {
        let (image, path) = create(&dir, &format!("{choice}-{direct}"), 8192, direct);
        let pool = Pool::new(1, 4096).unwrap();
        let engine = Engine::start(choice, 2, &pool).unwrap();
        block_on(async {
            let (buffer, result) = engine.read(&image, pool.take().await, 0, 4097).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            let (buffer, result) = engine.write(&image, buffer, 0, one(1..4097)).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            #[allow(clippy::reversed_empty_ranges)]
            let (buffer, result) = engine.write(&image, buffer, 0, one(9..8)).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            let (buffer, result) = engine.read(&image, buffer, u64::MAX - 1, 100).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(buffer.len(), 4096);
            drop(buffer);
            // A write to an image that is open for reading.
            let source = Image::open_source(&path, direct).unwrap();
            let (_, result) = engine.write(&source, pool.take().await, 4096, one(0..4096)).await;
            assert_eq!(
                result.unwrap_err().to_string(),
                format!("cannot write {} at byte 4096: Bad file descriptor (os error 9)", path.display())
            );
        });
    }
}

#[test]
fn buffered_images_do_not_fill_the_page_cache() {
    let dir = folder();
    for choice in [EngineChoice::Auto, EngineChoice::Sync] {
        let size = 32 << 20;
        let (image, path) = create(&dir, &format!("{choice}"), size, false);
        let pool = Pool::new(1, SLOT).unwrap();
        let engine = Engine::start(choice, 1, &pool).unwrap();
        block_on(async {
            for at in (0..size).step_by(SLOT) {
                engine.write(&image, pool.take().await, at, one(0..SLOT)).await.1.unwrap();
            }
            engine.sync(&image, SyncKind::Data).await.unwrap();
            assert!(cached(&path) <= size / 8, "after sync: {}", cached(&path));
            let source = Image::open_source(&path, false).unwrap();
            for at in (0..size).step_by(SLOT) {
                engine.read(&source, pool.take().await, at, SLOT).await.1.unwrap();
            }
            assert!(cached(&path) <= size / 4, "after reading: {}", cached(&path));
        });
    }
}

/// Bytes of the file in the page cache, by `fincore(1)`; 0 without it.
fn cached(path: &std::path::Path) -> u64 {
    let output = std::process::Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path)
        .output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.unwrap_or_default().trim().parse().unwrap_or(0)
}
