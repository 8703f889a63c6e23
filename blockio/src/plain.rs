//! The engine without io_uring: threads that make blocking system calls.
//!
//! Goal: the same results where io_uring is switched off (containers, policy, old kernels). Each
//! thread takes one operation and runs it to its end, so the depth is the number of threads.
#![allow(unsafe_code)]

use crate::op::{Call, Op};
use crate::queue::{Leave, Queue};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// More threads than this only wait for each other on the disks we know.
const MAX_THREADS: u32 = 16;

/// Starts the threads.
pub(crate) fn start(depth: u32) -> io::Result<(Arc<Queue>, Vec<JoinHandle<()>>)> {
    let wanted = depth.clamp(1, MAX_THREADS) as usize;
    let queue = Arc::new(Queue::new(wanted));
    let mut threads = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        let shared = Arc::clone(&queue);
        let spawned = Builder::new().name("vmferry-io".into()).spawn(move || work(&shared));
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) if threads.is_empty() => return Err(error),
            // Fewer threads do the same work.
            Err(_) => drop(Leave(&queue)),
        }
    }
    Ok((queue, threads))
}

fn work(queue: &Queue) {
    let _leave = Leave(queue);
    while let Some(mut op) = queue.pop() {
        run(&mut op);
        queue.finish(op);
    }
}

fn run(op: &mut Op) {
    while let Some(call) = op.next() {
        op.advance(execute(&call));
    }
}

/// Makes the call; a byte count or an `errno(3)`.
fn execute(call: &Call) -> Result<usize, i32> {
    // Offsets are at most i64::MAX: `Engine` checks every range before it is queued.
    let signed = |n: u64| i64::try_from(n).map_err(|_| libc::EINVAL);
    // SAFETY: descriptors, and addresses for `len` bytes, are valid and exclusively the
    // operation's as long as the `Op` lives (see `Op`); the caller holds it over this call.
    let result = unsafe {
        match *call {
            Call::Read { fd, to, len, offset } => libc::pread(fd, to.cast(), len as usize, signed(offset)?),
            Call::Write { fd, from, len, offset } => {
                libc::pwrite(fd, from.cast(), len as usize, signed(offset)?)
            }
            Call::Sync { fd, data_only: true } => libc::fdatasync(fd) as isize,
            Call::Sync { fd, data_only: false } => libc::fsync(fd) as isize,
            Call::Allocate { fd, mode, offset, len } => {
                libc::fallocate(fd, mode, signed(offset)?, signed(len)?) as isize
            }
            Call::Forget { fd, offset, len } => {
                let dontneed = libc::POSIX_FADV_DONTNEED;
                libc::posix_fadvise(fd, signed(offset)?, signed(len)?, dontneed) as isize
            }
            Call::Writeback { fd, offset, len } => {
                let write = libc::SYNC_FILE_RANGE_WRITE;
                libc::sync_file_range(fd, signed(offset)?, signed(len)?, write) as isize
            }
        }
    };
    usize::try_from(result).map_err(|_| {
        let error = io::Error::last_os_error();
        error.raw_os_error().unwrap_or(libc::EIO)
    })
}
