//! What the tests share.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part")]

use blockio::{Engine, EngineChoice, Image, Pool};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const SLOT: usize = 1 << 20;

/// A folder on a disk: `/tmp` may be in memory.
pub fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Every way to run: an engine, and direct I/O or not.
pub fn ways() -> Vec<(EngineChoice, bool)> {
    let mut ways = vec![(EngineChoice::Sync, false), (EngineChoice::Sync, true)];
    if uring(&Pool::new(1, 4096).unwrap()).is_some() {
        ways.extend([(EngineChoice::Uring, false), (EngineChoice::Uring, true)]);
    }
    ways
}

/// A ring, where this machine allows one.
pub fn uring(pool: &Pool) -> Option<Engine> {
    Engine::start(EngineChoice::Uring, 4, pool).ok()
}

pub fn create(folder: &TempDir, name: &str, size: u64, direct: bool) -> (Image, PathBuf) {
    let path = folder.path().join(name);
    let dir = File::open(folder.path()).unwrap();
    let image = Image::create_at(dir.as_fd(), OsStr::new(name), &path, size, direct).unwrap();
    (image, path)
}

/// Bytes that repeat nowhere near.
pub fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        })
        .collect()
}

/// One range as the list of segments that `write` takes.
pub fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

pub fn put(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}
