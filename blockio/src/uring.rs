//! The engine on io_uring: one thread owns the ring, it alone submits and reaps.
//!
//! # Goals
//!
//! Depth without threads: all that is queued goes to the kernel in one `io_uring_enter(2)`, which
//! also waits. The pool's memory is registered where the locked-memory limit allows, so that the
//! kernel does not look up the pages of every block again.
//!
//! # Non-goals
//!
//! Polling, linked operations, any order between operations.
//!
//! # Invariants
//!
//! * What the kernel works on lies in the slab until its completion is reaped; if the ring breaks
//!   or this thread panics, it is leaked.
//! * No more operations are in flight than the completion queue has places for.
#![allow(unsafe_code)]

use crate::op::{Call, Op};
use crate::pool::{Inner, MAX_SLOT, Pool};
use crate::queue::{Leave, Queue, Turn};
use crate::slab::Slab;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

/// Deeper queues only add latency to a disk (measured: 4-8 is enough).
const MAX_DEPTH: u32 = 1024;

/// The completion that says: look at the queue. The slab never gives this key.
const WAKE: u64 = u64::MAX;

/// Kernels before 5.13 take no more registered buffers (UIO_MAXIOV).
const MAX_REGISTERED: usize = 1024;

/// What [`start`] gives: the way in, the thread, and sentences about what had to be given up.
pub(crate) type Started = (Arc<Queue>, JoinHandle<()>, Vec<String>);

/// Sets a ring up on a thread of its own.
pub(crate) fn start(depth: u32, pool: &Pool) -> io::Result<Started> {
    let queue = Arc::new(Queue::with_event()?);
    let depth = depth.clamp(1, MAX_DEPTH);
    let (report, reported) = mpsc::channel();
    let shared = Arc::clone(&queue);
    let pool = Arc::clone(pool.inner());
    // SINGLE_ISSUER ties the ring to the thread that makes it, so it is made over there.
    let thread = Builder::new().name("vmferry-ring".into()).spawn(move || {
        let _leave = Leave(&shared);
        match Ring::new(depth, pool, &shared) {
            Ok((mut ring, notices)) => {
                let _ = report.send(Ok(notices));
                ring.run();
            }
            Err(error) => {
                let _ = report.send(Err(error));
            }
        }
    })?;
    let died = |_| Err(io::Error::other("its thread ended at once"));
    let notices = reported.recv().unwrap_or_else(died)?;
    Ok((queue, thread, notices))
}

struct Ring<'a> {
    // Before the slab: the ring is closed before what it worked on is given up.
    ring: IoUring,
    slab: Slab<Op>,
    ready: VecDeque<Op>,
    queue: &'a Queue,
    depth: usize,
    event: types::Fd,
    listening: bool,
    registered: Option<Registered>,
}

/// The pool's mapping, known to the kernel; the `Arc` keeps it mapped as long as it is.
struct Registered {
    pool: Arc<Inner>,
    slots_per_entry: usize,
}

impl<'a> Ring<'a> {
    fn new(depth: u32, pool: Arc<Inner>, queue: &'a Queue) -> io::Result<(Ring<'a>, Vec<String>)> {
        // One more for the event.
        let ring = set_up((depth + 1).next_power_of_two())?;
        probe(&ring)?;
        let event = queue.event().ok_or(io::ErrorKind::InvalidInput)?;
        let mut notices = Vec::new();
        let registered = match register(&ring, pool) {
            Ok(registered) => Some(registered),
            Err((error, needed)) => {
                notices.push(registration_notice(&error, needed));
                None
            }
        };
        let ring = Ring {
            ring,
            slab: Slab::new(),
            ready: VecDeque::new(),
            queue,
            depth: depth as usize,
            event: types::Fd(event),
            listening: false,
            registered,
        };
        Ok((ring, notices))
    }

    fn run(&mut self) {
        let mut completed = Vec::with_capacity(self.depth + 1);
        loop {
            let Ok(turn) = self.feed() else { return };
            if turn == Turn::Closed && self.slab.len() == 0 {
                return;
            }
            if self.listen().is_err() {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // The ring is broken; Drop leaks what is in it.
                Err(_) => return,
            }
            completed.extend(self.ring.completion().map(|c| (c.user_data(), c.result())));
            for (key, result) in completed.drain(..) {
                self.reap(key, result);
            }
        }
    }

    /// Fills the ring. Ends with it full, or with the queue empty and bound to signal the event.
    fn feed(&mut self) -> Result<Turn, squeue::PushError> {
        loop {
            while let Some(op) = self.ready.pop_front() {
                self.submit(op)?;
            }
            // Asked only now: what just ended has made room.
            let room = self.depth - self.slab.len();
            if room == 0 {
                return Ok(Turn::Go);
            }
            let turn = self.queue.fetch(room, &mut self.ready);
            if self.ready.is_empty() {
                return Ok(turn);
            }
        }
    }

    /// Puts the operation's next call on the ring, or ends it when there is none.
    fn submit(&mut self, mut op: Op) -> Result<(), squeue::PushError> {
        let Some(call) = op.next() else {
            self.queue.finish(op);
            return Ok(());
        };
        let entry = entry(&call, self.registered_index(&op));
        let key = self.slab.insert(op);
        // SAFETY: descriptors, and addresses for `len` bytes, are valid and exclusively the
        // operation's as long as the `Op` lives; it lies in the slab until `reap` gets this key,
        // and if that never happens `Drop` leaks it.
        unsafe { self.ring.submission().push(&entry.user_data(key)) }
    }

    /// Asks for a completion when the queue's event is signalled.
    fn listen(&mut self) -> Result<(), squeue::PushError> {
        if self.listening {
            return Ok(());
        }
        let readable = u32::from(libc::POLLIN.unsigned_abs());
        let entry = opcode::PollAdd::new(self.event, readable).build();
        // SAFETY: no memory involved; the queue, which outlives the ring, owns the descriptor.
        unsafe { self.ring.submission().push(&entry.user_data(WAKE))? };
        self.listening = true;
        Ok(())
    }

    fn reap(&mut self, key: u64, result: i32) {
        if key == WAKE {
            self.listening = false;
            self.queue.clear_event();
            return;
        }
        // A key that the slab does not know is a completion that nobody waits for.
        let Some(mut op) = self.slab.remove(key) else {
            return;
        };
        op.advance(usize::try_from(result).map_err(|_| result.saturating_neg()));
        // Whether it goes on or ends is found out on the way to the ring.
        self.ready.push_back(op);
    }

    fn registered_index(&self, op: &Op) -> Option<u16> {
        let registered = self.registered.as_ref()?;
        let slot = op.buffer()?.slot_in(&registered.pool)?;
        u16::try_from(slot / registered.slots_per_entry).ok()
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // Empty after a regular end. Else the kernel may still write into these buffers.
        self.slab.drain().for_each(Op::leak);
    }
}

/// A ring with the flags that suit one owning thread, as many of them as the kernel knows:
/// DEFER_TASKRUN needs 6.1, SINGLE_ISSUER 6.0, COOP_TASKRUN 5.19 (`io_uring_setup(2)`).
fn set_up(entries: u32) -> io::Result<IoUring> {
    let attempts: [fn(&mut io_uring::Builder); 4] = [
        |b| _ = b.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun(),
        |b| _ = b.setup_single_issuer().setup_coop_taskrun(),
        |b| _ = b.setup_coop_taskrun(),
        |_| {},
    ];
    let mut last = io::ErrorKind::Unsupported.into();
    for flags in attempts {
        let mut builder = IoUring::builder();
        builder.dontfork();
        flags(&mut builder);
        match builder.build(entries) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            other => return other,
        }
    }
    Err(last)
}

fn probe(ring: &IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::Fadvise::CODE,
        opcode::SyncFileRange::CODE,
        opcode::PollAdd::CODE,
    ];
    match needed.iter().find(|code| !probe.is_supported(**code)) {
        None => Ok(()),
        Some(code) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("this kernel's io_uring lacks operation {code}"),
        )),
    }
}

/// Registers the pool; on failure, why, and the bytes of locked memory it would take.
fn register(ring: &IoUring, pool: Arc<Inner>) -> Result<Registered, (io::Error, usize)> {
    let (start, bytes) = pool.whole();
    let slots_per_entry = (MAX_SLOT / pool.slot_bytes()).min(pool.slots());
    let step = slots_per_entry * pool.slot_bytes();
    let used = pool.slots() * pool.slot_bytes();
    let entries: Vec<libc::iovec> = (0..used)
        .step_by(step)
        .map(|from| libc::iovec { iov_base: start.wrapping_add(from).cast(), iov_len: step.min(used - from) })
        .collect();
    if entries.len() > MAX_REGISTERED {
        return Err((io::ErrorKind::OutOfMemory.into(), bytes));
    }
    // SAFETY: the entries lie inside the pool's mapping, which `Registered` keeps mapped until
    // the ring is gone. The kernel uses them only for operations that name them.
    match unsafe { ring.submitter().register_buffers(&entries) } {
        Ok(()) => Ok(Registered { pool, slots_per_entry }),
        Err(error) => Err((error, bytes)),
    }
}

fn registration_notice(error: &io::Error, needed: usize) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{bytes} bytes"));
    format!(
        "the buffers are not registered with io_uring ({error}): that takes {needed} bytes of \
         locked memory, and RLIMIT_MEMLOCK is {limit}; to save the CPU time, raise it (ulimit -l, \
         or LimitMEMLOCK= in the systemd unit)"
    )
}

fn entry(call: &Call, registered: Option<u16>) -> squeue::Entry {
    match *call {
        Call::Read { fd, to, len, offset } => match registered {
            Some(index) => opcode::ReadFixed::new(types::Fd(fd), to, len, index).offset(offset).build(),
            None => opcode::Read::new(types::Fd(fd), to, len).offset(offset).build(),
        },
        Call::Write { fd, from, len, offset } => match registered {
            Some(index) => opcode::WriteFixed::new(types::Fd(fd), from, len, index).offset(offset).build(),
            None => opcode::Write::new(types::Fd(fd), from, len).offset(offset).build(),
        },
        Call::Sync { fd, data_only } => {
            let flags = if data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
            opcode::Fsync::new(types::Fd(fd)).flags(flags).build()
        }
        Call::Allocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(types::Fd(fd), len).offset(offset).mode(mode).build()
        }
        Call::Forget { fd, offset, len } => {
            // The kernel reads this length as 32 bits before 6.10; 0, up to the end, is kept.
            let len = i64::from(u32::try_from(len).unwrap_or(u32::MAX));
            opcode::Fadvise::new(types::Fd(fd), len, libc::POSIX_FADV_DONTNEED).offset(offset).build()
        }
        Call::Writeback { fd, offset, len } => {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            opcode::SyncFileRange::new(types::Fd(fd), len)
                .offset(offset)
                .flags(libc::SYNC_FILE_RANGE_WRITE)
                .build()
        }
    }
}
