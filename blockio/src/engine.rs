//! The engine: reads, writes, syncs and allocates on images, with io_uring or without.
//!
//! # Goals
//!
//! One interface in front of both ways, with the same results; futures that may be dropped at any
//! time (the operation still runs to its completion, and its buffer goes back to the pool then).
//!
//! # Non-goals
//!
//! Order between operations: who needs one awaits the first before starting the second. Limits on
//! what is queued: the pool is the limit, as every read and write holds a buffer.
//!
//! # Invariants
//!
//! When the last clone is dropped, everything queued is carried out and the threads are joined; a
//! disk that answers nothing for [`PATIENCE`] is left to its thread, which keeps what it uses.

use crate::error::{Error, invalid};
use crate::image::{Feature, Image};
use crate::op::{Done, Op, Work};
use crate::plain;
use crate::pool::{Buffer, Pool};
use crate::queue::{Queue, Stall};
use crate::uring;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the end of an engine waits without any completion before it leaves its threads alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// No single `fallocate(2)` covers more bytes, so that none goes on without end.
pub(crate) const PIECE: u64 = 1 << 30;

/// Which engine the user wants: `auto`, `uring` or `sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where it is allowed, else plain system calls and a notice.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Plain system calls on threads.
    Sync,
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineChoice::Auto => "auto",
            EngineChoice::Uring => "uring",
            EngineChoice::Sync => "sync",
        })
    }
}

/// A word that names no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine {0:?}: auto, uring or sync")]
pub struct ParseEngineError(String);

impl FromStr for EngineChoice {
    type Err = ParseEngineError;

    fn from_str(word: &str) -> Result<EngineChoice, ParseEngineError> {
        match word {
            "auto" => Ok(EngineChoice::Auto),
            "uring" => Ok(EngineChoice::Uring),
            "sync" => Ok(EngineChoice::Sync),
            other => Err(ParseEngineError(other.into())),
        }
    }
}

/// Which engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring.
    Uring,
    /// Plain system calls on threads.
    Sync,
}

impl EngineKind {
    /// `uring` or `sync`.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineKind::Uring => "uring",
            EngineKind::Sync => "sync",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// Contents and size: `fdatasync(2)`.
    Data,
    /// Contents and all attributes: `fsync(2)`.
    All,
}

/// Carries operations out. Clones share it.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    kind: EngineKind,
    notices: Vec<String>,
    depth: u32,
    workers: Workers,
    /// Threads for images that the ring must not touch; started with the first of them.
    aside: OnceLock<Workers>,
    zeros: OnceLock<Pool>,
}

/// A queue and the threads that serve it.
struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine that keeps up to `depth` operations under way (the plain one: at most
    /// 16). `pool` is what most buffers will come from; those of other pools work too.
    ///
    /// # Errors
    ///
    /// With [`EngineChoice::Uring`], io_uring is not available; else, no thread can be started.
    pub fn start(choice: EngineChoice, depth: u32, pool: &Pool) -> Result<Engine, Error> {
        let mut notices = Vec::new();
        if choice != EngineChoice::Sync {
            match uring::start(depth, pool) {
                Ok((queue, thread, notices)) => {
                    let workers = Workers { queue, threads: vec![thread] };
                    return Ok(Engine::of(EngineKind::Uring, notices, depth, workers));
                }
                Err(error) if choice == EngineChoice::Uring => {
                    return Err(Error::new("start io_uring", explained(error)));
                }
                Err(error) => notices.push(fallback_notice(&error)),
            }
        }
        let workers = Workers::plain(depth).map_err(|e| Error::new("start the I/O threads", e))?;
        Ok(Engine::of(EngineKind::Sync, notices, depth, workers))
    }

    fn of(kind: EngineKind, notices: Vec<String>, depth: u32, workers: Workers) -> Engine {
        let (aside, zeros) = (OnceLock::new(), OnceLock::new());
        Engine { inner: Arc::new(Inner { kind, notices, depth, workers, aside, zeros }) }
    }

    /// Which engine runs.
    pub fn kind(&self) -> EngineKind {
        self.inner.kind
    }

    /// What had to be given up, why, and how to get it: a sentence each.
    pub fn notices(&self) -> Vec<String> {
        self.inner.notices.clone()
    }

    /// The oldest operation that has been under way for longer than `age`, for a watchdog.
    pub fn stalled(&self, age: Duration) -> Option<Stall> {
        let workers = std::iter::once(&self.inner.workers).chain(self.inner.aside.get());
        let oldest = workers.filter_map(|workers| workers.queue.oldest()).max_by_key(|stall| stall.age);
        oldest.filter(|stall| stall.age > age)
    }

    /// Reads `len` bytes at byte `offset` to the start of `buffer`. The count is below `len` only
    /// at the end of the file. Bytes of the buffer past the count are not defined.
    ///
    /// The buffer comes back in any case. Only if the engine itself broke down does the kernel
    /// keep it for good; what comes back is empty then.
    ///
    /// # Errors
    ///
    /// Whatever `read(2)` says, with the offset; `len` above the size of the buffer.
    pub async fn read(
        &self,
        image: &Image,
        buffer: Buffer,
        offset: u64,
        len: usize,
    ) -> (Buffer, Result<usize, Error>) {
        if let Err(cause) = check(offset, len, buffer.len()) {
            return (buffer, Err(Error::on("read", image.path(), cause).at(offset)));
        }
        let work = Work::Read { buffer, offset, len };
        let done = self.run("read", image, work).await;
        (done.buffer.unwrap_or_else(Buffer::lost), done.result)
    }

    /// Writes the ranges `segments` of `buffer`, each to byte `offset` + its start; all of them,
    /// or an error. What is not aligned to [`Image::align`] goes through the page cache.
    ///
    /// The buffer comes back as from [`Engine::read`].
    ///
    /// # Errors
    ///
    /// Whatever `write(2)` says, with the offset ([`io::ErrorKind::StorageFull`] when the disk
    /// is); a segment outside the buffer.
    pub async fn write(
        &self,
        image: &Image,
        buffer: Buffer,
        offset: u64,
        mut segments: Vec<Range<usize>>,
    ) -> (Buffer, Result<(), Error>) {
        let checked = segments.iter().try_for_each(|s| {
            if s.start > s.end {
                return Err(invalid("a segment that ends before it starts"));
            }
            check(offset, s.end, buffer.len())
        });
        if let Err(cause) = checked {
            return (buffer, Err(Error::on("write", image.path(), cause).at(offset)));
        }
        segments.retain(|s| !s.is_empty());
        let work = Work::Write { buffer, offset, segments };
        let done = self.run("write", image, work).await;
        let buffer = done.buffer.unwrap_or_else(Buffer::lost);
        (buffer, done.result.map(|_| ()))
    }

    /// Makes durable what was written *and awaited* before this call.
    ///
    /// # Errors
    ///
    /// Whatever `fsync(2)` says. The first failure is remembered and returned by every later call
    /// on this image: the kernel reports lost writes once only.
    pub async fn sync(&self, image: &Image, kind: SyncKind) -> Result<(), Error> {
        let turn = image.sync_turn().await;
        let done = self.run("sync", image, Work::Sync { kind, turn }).await;
        done.result.map(|_| ())
    }

    /// Reserves space for a range of bytes by `fallocate(2)`; contents and size stay. False when
    /// the file system can not.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::StorageFull`] and whatever else `fallocate(2)` says.
    pub async fn allocate(&self, image: &Image, range: Range<u64>) -> Result<bool, Error> {
        self.fallocate(image, Feature::Allocate, range).await
    }

    /// Applies one use of `fallocate(2)` piece by piece. False when the file system lacks it,
    /// which is remembered.
    pub(crate) async fn fallocate(
        &self,
        image: &Image,
        feature: Feature,
        range: Range<u64>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if !image.has(feature) {
                return Ok(false);
            }
            let piece = at..range.end.min((at / PIECE + 1).saturating_mul(PIECE));
            at = piece.end;
            let work = Work::Allocate { feature, range: piece };
            match self.run("allocate space for", image, work).await.result {
                Ok(_) => {}
                Err(e) if lacking(&e) => image.lacks(feature),
                Err(e) => return Err(e),
            }
        }
        Ok(image.has(feature))
    }

    pub(crate) async fn run(&self, verb: &'static str, image: &Image, work: Work) -> Done {
        let (op, done) = Op::new(image, work);
        match self.inner.workers_for(image) {
            Ok(workers) => workers.queue.push(op),
            Err(cause) => op.reject(cause),
        }
        done.await.unwrap_or_else(|_| Done {
            buffer: None,
            result: Err(Error::on(verb, image.path(), io::Error::other("the I/O engine broke down"))),
        })
    }

    /// The pool of the one buffer of zeros.
    pub(crate) fn zeros(&self) -> &OnceLock<Pool> {
        &self.inner.zeros
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Inner {
    fn workers_for(&self, image: &Image) -> io::Result<&Workers> {
        if self.kind == EngineKind::Sync || !image.needs_plain_calls() {
            return Ok(&self.workers);
        }
        match self.aside.get() {
            Some(workers) => Ok(workers),
            None => {
                let workers = Workers::plain(self.depth)?;
                Ok(self.aside.get_or_init(|| workers))
            }
        }
    }
}

impl Workers {
    fn plain(depth: u32) -> io::Result<Workers> {
        let (queue, threads) = plain::start(depth)?;
        Ok(Workers { queue, threads })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.close();
        let me = std::thread::current().id();
        // A task that is dropped by its own waker may end here on an engine thread.
        if self.threads.iter().any(|thread| thread.thread().id() == me) {
            return;
        }
        if self.queue.drain(PATIENCE) {
            for thread in self.threads.drain(..) {
                // A panic was seen by those who waited for its operations.
                let _ = thread.join();
            }
        }
    }
}

fn check(offset: u64, len: usize, room: usize) -> io::Result<()> {
    if len > room {
        return Err(invalid(format!("{len} bytes do not fit a buffer of {room}")));
    }
    match offset.checked_add(len as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(invalid("beyond the largest offset of a file")),
    }
}

/// The answers of file systems that do not have a use of `fallocate(2)`.
fn lacking(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// What forbids io_uring here, as far as it can be seen.
fn suspect() -> String {
    // 0: allowed; 1: for one group only; 2: for nobody (kernel/sysctl documentation).
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
        Ok(value) if value.trim() == "0" => {
            "kernel.io_uring_disabled is 0, so a seccomp filter (container, systemd unit) or \
             another policy forbids it: allow io_uring_setup, io_uring_enter and io_uring_register"
                .into()
        }
        Ok(value) => format!(
            "kernel.io_uring_disabled is {}: sysctl -w kernel.io_uring_disabled=0 enables it",
            value.trim()
        ),
        Err(_) => "the kernel has no io_uring, or a seccomp filter (container, systemd unit) \
                   forbids it: allow io_uring_setup, io_uring_enter and io_uring_register"
            .into(),
    }
}

fn hint(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => suspect(),
        Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l, or LimitMEMLOCK= in the systemd unit)".into(),
        _ => "Linux 5.6 or newer is needed".into(),
    }
}

fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{error}; {}", hint(&error)))
}

fn fallback_notice(error: &io::Error) -> String {
    format!("io_uring is not available ({error}), using plain system calls: {}", hint(error))
}
