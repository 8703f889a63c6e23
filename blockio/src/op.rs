//! One operation as a state machine that owns what it works on.
//!
//! # Goals
//!
//! Both engines run the same machine: [`Op::next`] says which system call comes next,
//! [`Op::advance`] takes its result. Short transfers, retries, unaligned ends, the fall-back from
//! direct to buffered, and keeping the page cache small are decided here once.
//!
//! # Invariants
//!
//! * Addresses and descriptors in a [`Call`] are valid as long as its [`Op`] lives; an engine
//!   keeps the `Op` until the call has completed.
//! * A sync never succeeds after one of the same image failed. Syncs of one image take turns
//!   (the guard travels in the operation), as the kernel tells only one of two at the same time.

use crate::engine::SyncKind;
use crate::error::Error;
use crate::image::{Feature, Image};
use crate::pool::Buffer;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use tokio::sync::{OwnedMutexGuard, oneshot};

/// The kernel moves at most 0x7ffff000 bytes per call (`read(2)`); this stays aligned below it.
const MAX_CALL: usize = 1 << 30;

/// How often in a row EINTR and EAGAIN are retried before they count as an error.
const MAX_RETRIES: u32 = 1000;

/// What an awaiting caller gets.
pub(crate) struct Done {
    /// The buffer of a read or write.
    pub(crate) buffer: Option<Buffer>,
    /// Bytes read; 0 for the rest.
    pub(crate) result: Result<usize, Error>,
}

/// One system call.
pub(crate) enum Call {
    Read {
        fd: RawFd,
        to: *mut u8,
        len: u32,
        offset: u64,
    },
    Write {
        fd: RawFd,
        from: *const u8,
        len: u32,
        offset: u64,
    },
    Sync {
        fd: RawFd,
        data_only: bool,
    },
    Allocate {
        fd: RawFd,
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// `posix_fadvise(2)`, POSIX_FADV_DONTNEED; length 0 is up to the end.
    Forget {
        fd: RawFd,
        offset: u64,
        len: u64,
    },
    /// `sync_file_range(2)`, SYNC_FILE_RANGE_WRITE. It starts the writing without waiting and, as
    /// it takes none of the wait flags, eats no error that a later fsync must report.
    Writeback {
        fd: RawFd,
        offset: u64,
        len: u64,
    },
}

pub(crate) enum Work {
    Read {
        buffer: Buffer,
        offset: u64,
        len: usize,
    },
    /// Segments are ranges of the buffer, not empty; each goes to `offset + start`.
    Write {
        buffer: Buffer,
        offset: u64,
        segments: Vec<Range<usize>>,
    },
    Sync {
        kind: SyncKind,
        turn: OwnedMutexGuard<()>,
    },
    Allocate {
        feature: Feature,
        range: Range<u64>,
    },
}

pub(crate) struct Op {
    /// Given by the queue.
    pub(crate) id: u64,
    image: Image,
    work: Work,
    reply: oneshot::Sender<Done>,
    stage: Stage,
    /// Bytes read, or bytes written of the present segment.
    done: usize,
    segment: usize,
    /// The present call is a direct one.
    direct: bool,
    /// What went through the page cache: first byte and end.
    cached: Option<Range<u64>>,
    retries: u32,
    error: Option<Error>,
}

#[derive(PartialEq)]
enum Stage {
    Main,
    Tidy,
    End,
}

impl Op {
    pub(crate) fn new(image: &Image, work: Work) -> (Op, oneshot::Receiver<Done>) {
        let (reply, receiver) = oneshot::channel();
        let op = Op {
            id: 0,
            image: image.clone(),
            work,
            reply,
            stage: Stage::Main,
            done: 0,
            segment: 0,
            direct: false,
            cached: None,
            retries: 0,
            error: None,
        };
        (op, receiver)
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    pub(crate) fn verb(&self) -> &'static str {
        match &self.work {
            Work::Read { .. } => "read",
            Work::Write { .. } => "write",
            Work::Sync { .. } => "sync",
            Work::Allocate { feature: Feature::Allocate, .. } => "allocate space for",
            Work::Allocate { .. } => "zero",
        }
    }

    pub(crate) fn offset(&self) -> Option<u64> {
        match &self.work {
            Work::Read { offset, .. } => Some(offset + self.done as u64),
            Work::Write { offset, segments, .. } => {
                let start = segments.get(self.segment).map_or(0, |s| s.start);
                Some(offset + (start + self.done) as u64)
            }
            Work::Sync { .. } => None,
            Work::Allocate { range, .. } => Some(range.start),
        }
    }

    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        match &self.work {
            Work::Read { buffer, .. } | Work::Write { buffer, .. } => Some(buffer),
            Work::Sync { .. } | Work::Allocate { .. } => None,
        }
    }

    /// The next system call, or `None` when the operation is over.
    pub(crate) fn next(&mut self) -> Option<Call> {
        if self.stage == Stage::Main {
            if let Some(call) = self.main_call() {
                return Some(call);
            }
            self.stage = if self.error.is_none() { Stage::Tidy } else { Stage::End };
        }
        if self.stage == Stage::Tidy {
            if let Some(call) = self.tidy_call() {
                return Some(call);
            }
            self.stage = Stage::End;
        }
        None
    }

    fn main_call(&mut self) -> Option<Call> {
        let align = self.image.align();
        match &self.work {
            Work::Read { buffer, offset, len, .. } => {
                let rest = len.checked_sub(self.done).filter(|rest| *rest > 0)?;
                let at = offset + self.done as u64;
                // The kernel checks memory and offset alike: both are aligned or neither is.
                let aligned = is_aligned(*offset, align) && self.done.is_multiple_of(align);
                // Up to whole blocks: the slot takes what lies past the end of the range.
                let whole = rest
                    .checked_next_multiple_of(align)
                    .filter(|whole| self.done + whole <= buffer.len())
                    .unwrap_or(rest - rest % align);
                let (fd, len) = match self.image.direct_fd() {
                    Some(fd) if aligned && whole > 0 => {
                        self.direct = true;
                        (fd, whole)
                    }
                    _ => {
                        self.direct = false;
                        (self.image.buffered_fd(), rest)
                    }
                };
                let to = buffer.address().wrapping_add(self.done);
                Some(Call::Read { fd, to, len: clip(len), offset: at })
            }
            Work::Write { buffer, offset, segments } => {
                let segment = segments.get(self.segment)?;
                let from = segment.start + self.done;
                let rest = segment.end - from;
                let (fd, len) = match self.image.direct_fd() {
                    None => {
                        self.direct = false;
                        (self.image.buffered_fd(), rest)
                    }
                    Some(fd) => {
                        let head = from.next_multiple_of(align) - from;
                        let whole = rest - rest % align;
                        self.direct = is_aligned(*offset, align) && head == 0 && whole > 0;
                        if self.direct {
                            (fd, whole)
                        } else if is_aligned(*offset, align) && head > 0 {
                            (self.image.buffered_fd(), rest.min(head))
                        } else {
                            (self.image.buffered_fd(), rest)
                        }
                    }
                };
                Some(Call::Write {
                    fd,
                    from: buffer.address().wrapping_add(from),
                    len: clip(len),
                    offset: offset + from as u64,
                })
            }
            // `done` counts the completed call.
            Work::Sync { .. } | Work::Allocate { .. } if self.done > 0 => None,
            Work::Sync { kind, .. } => {
                if let Some(error) = self.image.sync_failure() {
                    self.error = Some(error);
                    return None;
                }
                Some(Call::Sync { fd: self.image.buffered_fd(), data_only: *kind == SyncKind::Data })
            }
            Work::Allocate { feature, range } => Some(Call::Allocate {
                fd: self.image.buffered_fd(),
                mode: mode(*feature),
                offset: range.start,
                len: range.end - range.start,
            }),
        }
    }

    /// Keeps what went through the page cache from filling it: read pages go at once, written
    /// ones are sent off now and go after the sync.
    fn tidy_call(&self) -> Option<Call> {
        let fd = self.image.buffered_fd();
        let cached = || {
            let range = self.cached.clone()?;
            Some((range.start, range.end - range.start))
        };
        match &self.work {
            Work::Read { .. } => cached().map(|(offset, len)| Call::Forget { fd, offset, len }),
            Work::Write { .. } => cached().map(|(offset, len)| Call::Writeback { fd, offset, len }),
            Work::Sync { .. } => {
                self.image.take_cached_write().then_some(Call::Forget { fd, offset: 0, len: 0 })
            }
            Work::Allocate { .. } => None,
        }
    }

    /// Takes the result of the call that [`Op::next`] gave: a byte count or an `errno(3)`.
    pub(crate) fn advance(&mut self, result: Result<usize, i32>) {
        if self.stage == Stage::Tidy {
            // Advice only: a file system without it is no reason to fail.
            self.stage = Stage::End;
            return;
        }
        match result {
            Ok(count) => {
                self.retries = 0;
                self.progress(count);
            }
            Err(libc::EINTR | libc::EAGAIN) if self.retries < MAX_RETRIES => self.retries += 1,
            // The call was aligned, so it is the file system that has no direct I/O; if not, the
            // buffered descriptor will say the same.
            Err(libc::EINVAL) if self.direct => self.image.give_up_direct(),
            Err(errno) => self.fail(io::Error::from_raw_os_error(errno)),
        }
    }

    fn progress(&mut self, count: usize) {
        let at = self.offset().unwrap_or(0);
        match &mut self.work {
            Work::Read { len, .. } => {
                if count == 0 {
                    *len = self.done;
                }
                self.done += count;
            }
            Work::Write { .. } if count == 0 => {
                self.fail(io::ErrorKind::WriteZero.into());
                return;
            }
            Work::Write { segments, .. } => {
                self.done += count;
                let segment = segments.get(self.segment);
                if segment.is_some_and(|s| s.start + self.done >= s.end) {
                    self.segment += 1;
                    self.done = 0;
                }
                if !self.direct {
                    self.image.mark_cached_write();
                }
            }
            Work::Sync { .. } | Work::Allocate { .. } => {
                self.done = 1;
                return;
            }
        }
        if !self.direct {
            let end = at + count as u64;
            self.cached = Some(match self.cached.take() {
                Some(range) => range.start.min(at)..range.end.max(end),
                None => at..end,
            });
        }
    }

    fn fail(&mut self, cause: io::Error) {
        let mut error = Error::on(self.verb(), self.image.path(), cause);
        if let Some(offset) = self.offset() {
            error = error.at(offset);
        }
        if matches!(self.work, Work::Sync { .. }) {
            self.image.remember_sync_failure(&error);
        }
        self.error = Some(error);
        self.stage = Stage::End;
    }

    /// Answers the caller. Nobody waiting is fine: the buffer then goes back to its pool.
    pub(crate) fn finish(self) {
        let (buffer, count) = match self.work {
            Work::Read { buffer, len, .. } => (Some(buffer), self.done.min(len)),
            Work::Write { buffer, .. } => (Some(buffer), 0),
            Work::Sync { turn, .. } => {
                drop(turn);
                (None, 0)
            }
            Work::Allocate { .. } => (None, 0),
        };
        let result = match self.error {
            Some(error) => Err(error),
            None => Ok(count),
        };
        let _ = self.reply.send(Done { buffer, result });
    }

    /// Gives the operation back to a caller that could not hand it over.
    pub(crate) fn reject(self, cause: io::Error) {
        let mut op = self;
        op.error = Some(Error::on(op.verb(), op.image.path(), cause));
        op.finish();
    }

    /// The kernel may use buffer and image for ever: they are leaked, and the caller is told by
    /// its channel's end.
    pub(crate) fn leak(self) {
        drop(self.reply);
        std::mem::forget((self.work, self.image));
    }
}

fn is_aligned(offset: u64, align: usize) -> bool {
    offset.is_multiple_of(align as u64)
}

fn clip(len: usize) -> u32 {
    u32::try_from(len.min(MAX_CALL)).unwrap_or(u32::MAX)
}

/// The mode argument of `fallocate(2)`. None of them changes the size.
fn mode(feature: Feature) -> i32 {
    libc::FALLOC_FL_KEEP_SIZE
        | match feature {
            Feature::Allocate => 0,
            Feature::Punch => libc::FALLOC_FL_PUNCH_HOLE,
            Feature::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
        }
}
