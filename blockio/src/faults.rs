//! Tests with descriptors that fail: file systems that lie are hard to come by.

use crate::engine::{Engine, EngineChoice, SyncKind};
use crate::image::{Feature, Image};
use crate::pool::Pool;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

/// Both engines; the ring only where this machine allows one.
fn engines(pool: &Pool) -> Vec<Engine> {
    let choices = [EngineChoice::Sync, EngineChoice::Auto];
    choices.map(|choice| Engine::start(choice, 2, pool).unwrap()).into()
}

fn open(path: &str) -> OwnedFd {
    let options = File::options().read(true).write(true).open(path);
    options.unwrap().into()
}

fn one(len: usize) -> Vec<std::ops::Range<usize>> {
    std::iter::once(0..len).collect()
}

/// `/dev/full`: every write says ENOSPC. The offset is that of the segment.
#[test]
fn a_full_disk_is_named_with_the_offset() {
    let pool = Pool::new(1, 8192).unwrap();
    for engine in engines(&pool) {
        let image = Image::of(Path::new("/x.img"), open("/dev/full"), None, 4096, 1 << 20);
        let buffer = pool.try_take().unwrap();
        let segments = vec![0..0, 512..1024, 4096..8192];
        let (buffer, result) = block_on(engine.write(&image, buffer, 8192, segments));
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write /x.img at byte 8704: No space left on device (os error 28)"
        );
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(buffer.len(), 8192);
    }
}

/// Opened with O_DIRECT, but the first read and write say EINVAL: here because a block of one
/// byte is none.
#[test]
fn direct_io_that_was_promised_and_refused() {
    let pool = Pool::new(1, 8192).unwrap();
    for engine in engines(&pool) {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&[7; 3000]).unwrap();
        let direct = rustix::fs::open(
            file.path(),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT,
            rustix::fs::Mode::empty(),
        );
        // Without direct I/O there is nothing to refuse.
        let Ok(direct) = direct else { return };
        let path = file.path().to_str().unwrap();
        let image = Image::of(file.path(), open(path), Some(direct), 1, 3000);
        assert!(image.direct());
        let buffer = pool.try_take().unwrap();
        let (mut buffer, count) = block_on(engine.read(&image, buffer, 1, 5000));
        assert_eq!(count.unwrap(), 2999);
        assert!(buffer[..2999].iter().all(|b| *b == 7));
        assert!(!image.direct());
        buffer.fill(9);
        block_on(engine.write(&image, buffer, 1, one(10))).1.unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap()[..12], [7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
        assert_eq!(
            image.take_notices(),
            [format!("{path} does not support direct I/O (O_DIRECT): using the page cache")]
        );
    }
}

/// An fsync that fails (EINVAL: a device without one) and works afterwards.
#[test]
fn a_failed_sync_fails_for_ever() {
    let pool = Pool::new(1, 4096).unwrap();
    for engine in engines(&pool) {
        let image = Image::of(Path::new("/x.img"), open("/dev/null"), None, 4096, 0);
        let first = block_on(engine.sync(&image, SyncKind::Data)).unwrap_err();
        assert_eq!(first.to_string(), "cannot sync /x.img: Invalid argument (os error 22)");
        assert!(image.sync_before_map().is_err());

        let file = tempfile::tempfile().unwrap();
        let image = Image::of(Path::new("/x.img"), file.into(), None, 4096, 0);
        block_on(engine.sync(&image, SyncKind::All)).unwrap();
        image.remember_sync_failure(&first);
        for kind in [SyncKind::Data, SyncKind::All] {
            let again = block_on(engine.sync(&image.clone(), kind)).unwrap_err();
            assert_eq!(again.to_string(), first.to_string());
        }
        assert!(image.sync_before_map().is_err());
    }
}

/// Each way to zero is taken away in turn; what was there is zero all the same.
#[test]
fn zeros_without_fallocate() {
    let pool = Pool::new(1, 4096).unwrap();
    for engine in engines(&pool) {
        for refused in [&[][..], &[Feature::Punch], &[Feature::Punch, Feature::ZeroRange]] {
            let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
            let size = (2 << 20) + 5000;
            file.write_all(&vec![5; size]).unwrap();
            let image = Image::of(file.path(), open(file.path().to_str().unwrap()), None, 4096, size as u64);
            refused.iter().for_each(|feature| image.lacks(*feature));
            block_on(engine.zero(&image, 3000..size as u64 + 4096)).unwrap();
            let mut model = vec![5; size];
            model[3000..].fill(0);
            assert!(std::fs::read(file.path()).unwrap() == model);
        }
        // What has no fallocate(2) at all is remembered, and not an error.
        let image = Image::of(Path::new("/x"), open("/dev/null"), None, 4096, 1 << 20);
        let result = block_on(engine.allocate(&image, 0..4096));
        assert!(
            matches!(&result, Ok(false)) || result.is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV))
        );
        image.lacks(Feature::Allocate);
        assert!(!block_on(engine.allocate(&image, 0..4096)).unwrap());
    }
}

/// As a device is zeroed: by the kernel in whole blocks, by hand at both ends, and by hand alone.
#[test]
fn zeros_as_on_a_device() {
    let pool = Pool::new(1, 4096).unwrap();
    let sectors = Some(crate::Sectors { logical: 4096, physical: 4096 });
    for engine in engines(&pool) {
        for refused in [false, true] {
            for range in [0..3 << 20, 3000..(2 << 20) + 77, 4096..8192, 5000..5100, 4000..4200, 0..1] {
                let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
                let mut model = vec![5; (2 << 20) + 512];
                file.write_all(&model).unwrap();
                let fd = open(file.path().to_str().unwrap());
                let size = model.len() as u64;
                let image = Image::with_sectors(file.path(), fd, None, 4096, size, sectors);
                if refused {
                    image.lacks(Feature::ZeroRange);
                }
                block_on(engine.zero(&image, range.clone())).unwrap();
                let end = model.len().min(range.end as usize);
                model[range.start as usize..end].fill(0);
                assert!(std::fs::read(file.path()).unwrap() == model, "{range:?}, refused: {refused}");
            }
        }
    }
}

/// In a batch some fail and the others go on; then the same buffers and ring serve another file.
#[test]
fn failures_in_a_batch_stay_with_their_own() {
    let pool = Pool::new(32, 65536).unwrap();
    for engine in engines(&pool) {
        let bad = Image::of(Path::new("/bad"), open("/dev/full"), None, 4096, 1 << 30);
        for round in 0..20_u8 {
            let file = tempfile::tempfile_in("/var/tmp").unwrap();
            let good = Image::of(Path::new("/good"), file.into(), None, 4096, 0);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for i in 0..32_usize {
                    let (engine, bad, good) = (engine.clone(), bad.clone(), good.clone());
                    let mut buffer = pool.take().await;
                    buffer.fill(round ^ i as u8);
                    tasks.spawn(async move {
                        let image = if i % 5 == 3 { &bad } else { &good };
                        let at = (i * 65536) as u64;
                        let (buffer, result) = engine.write(image, buffer, at, one(65536)).await;
                        assert_eq!(
                            result.map_err(|e| e.offset()),
                            if i % 5 == 3 { Err(Some(at)) } else { Ok(()) }
                        );
                        if i % 5 != 3 {
                            let (buffer, count) = engine.read(&good, buffer, at, 65536).await;
                            assert_eq!(count.unwrap(), 65536);
                            assert!(buffer.iter().all(|b| *b == round ^ i as u8));
                        }
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done.unwrap();
                }
            });
        }
        assert_eq!(pool.free(), 32);
    }
}
