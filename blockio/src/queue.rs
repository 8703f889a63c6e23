//! The way into an engine: a queue under a lock, and one wake-up per batch.
//!
//! # Goals
//!
//! Any thread hands over operations; the engine's threads take them in order. A thread that is
//! busy is not woken: it looks at the queue anyway before it sleeps.
//!
//! # Invariants
//!
//! * After [`Queue::close`] nothing new gets in, and what is in is still done.
//! * When the last worker is gone nobody is left waiting: operations still queued are dropped,
//!   which their callers see as an error.

use crate::op::Op;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) struct Queue {
    state: Mutex<State>,
    /// For threads of the plain engine.
    ready: Condvar,
    /// For who waits until the engine is drained.
    drained: Condvar,
    /// For the ring's thread, which sleeps in the ring.
    event: Option<OwnedFd>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Op>,
    open: BTreeMap<u64, Entry>,
    next_id: u64,
    finished: u64,
    workers: usize,
    sleeping: bool,
    closed: bool,
}

struct Entry {
    verb: &'static str,
    path: PathBuf,
    offset: Option<u64>,
    since: Instant,
}

/// What the ring's thread is to do next.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Go,
    /// Closed, and nothing is queued.
    Closed,
}

/// An operation that did not complete for a long time: a disk that hangs, or a kernel that lost a
/// request.
#[derive(Clone, Debug)]
pub struct Stall {
    /// What it is, as a verb.
    pub operation: &'static str,
    /// The image.
    pub path: PathBuf,
    /// Byte offset in the image.
    pub offset: Option<u64>,
    /// For how long it has been under way.
    pub age: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "no completion for {} s: {} {path}", self.age.as_secs(), self.operation)?;
        match self.offset {
            Some(offset) => write!(f, " at byte {offset}"),
            None => Ok(()),
        }
    }
}

impl Queue {
    /// For threads that wait on the queue itself.
    pub(crate) fn new(workers: usize) -> Queue {
        Queue {
            state: Mutex::new(State { workers, ..State::default() }),
            ready: Condvar::new(),
            drained: Condvar::new(),
            event: None,
        }
    }

    /// For one thread that waits on [`Queue::event`].
    pub(crate) fn with_event() -> io::Result<Queue> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Queue { event: Some(event), ..Queue::new(1) })
    }

    pub(crate) fn event(&self) -> Option<RawFd> {
        self.event.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Hands over an operation; it is answered with an error when the engine has stopped.
    pub(crate) fn push(&self, mut op: Op) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            op.reject(io::Error::other("the I/O engine has stopped"));
            return;
        }
        op.id = state.next_id;
        state.next_id += 1;
        let entry = Entry {
            verb: op.verb(),
            path: op.image().path().to_owned(),
            offset: op.offset(),
            since: Instant::now(),
        };
        state.open.insert(op.id, entry);
        state.waiting.push_back(op);
        let wake = std::mem::take(&mut state.sleeping);
        drop(state);
        match &self.event {
            Some(event) if wake => signal(event),
            Some(_) => {}
            None => self.ready.notify_one(),
        }
    }

    /// Moves up to `room` operations out; with an empty queue and room left, the next
    /// [`Queue::push`] will signal the event.
    pub(crate) fn fetch(&self, room: usize, into: &mut VecDeque<Op>) -> Turn {
        let mut state = self.lock();
        let count = room.min(state.waiting.len());
        into.extend(state.waiting.drain(..count));
        state.sleeping = state.waiting.is_empty() && room > count;
        if state.closed && state.waiting.is_empty() { Turn::Closed } else { Turn::Go }
    }

    /// Waits for one operation; `None` when closed and empty.
    pub(crate) fn pop(&self) -> Option<Op> {
        let mut state = self.lock();
        loop {
            if let Some(op) = state.waiting.pop_front() {
                return Some(op);
            }
            if state.closed {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the event back to "not signalled".
    pub(crate) fn clear_event(&self) {
        if let Some(event) = &self.event {
            let mut count = [0; 8];
            // Nothing to read is as good: it was cleared before.
            let _ = rustix::io::read(event, &mut count);
        }
    }

    /// Answers the caller and strikes the operation off.
    pub(crate) fn finish(&self, op: Op) {
        let id = op.id;
        op.finish();
        let mut state = self.lock();
        state.open.remove(&id);
        state.finished += 1;
    }

    /// The operation that has been under way for longest.
    pub(crate) fn oldest(&self) -> Option<Stall> {
        let state = self.lock();
        let entry = state.open.values().min_by_key(|entry| entry.since)?;
        Some(Stall {
            operation: entry.verb,
            path: entry.path.clone(),
            offset: entry.offset,
            age: entry.since.elapsed(),
        })
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
        if let Some(event) = &self.event {
            signal(event);
        }
    }

    /// A worker's last word, even when it panics: see [`Leave`].
    fn leave(&self) {
        let mut state = self.lock();
        state.workers = state.workers.saturating_sub(1);
        let left = if state.workers == 0 {
            state.closed = true;
            std::mem::take(&mut state.waiting)
        } else {
            VecDeque::new()
        };
        drop(state);
        drop(left);
        self.drained.notify_all();
    }

    /// Waits until all workers have left; false when nothing completed for `patience`.
    pub(crate) fn drain(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        let mut seen = state.finished;
        let mut deadline = Instant::now() + patience;
        while state.workers > 0 {
            if state.finished != seen {
                seen = state.finished;
                deadline = Instant::now() + patience;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let slice = left.min(Duration::from_millis(100));
            state = self.drained.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the queue, on drop, that a worker has left.
pub(crate) struct Leave<'a>(pub(crate) &'a Queue);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn signal(event: &OwnedFd) {
    // The only refusal is "counter full": it is signalled, then.
    let _ = rustix::io::retry_on_intr(|| rustix::io::write(event.as_fd(), &1_u64.to_ne_bytes()));
}
