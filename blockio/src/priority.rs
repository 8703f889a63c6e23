//! How a process makes way for others: the CPU's and the disks' priority.
//!
//! Both belong to threads. A thread starts with those of the one that starts it, so what is lowered
//! before any other thread is there is lowered for all: the ring's own thread too, whose priority
//! io_uring gives to each request that does not name one.
#![allow(unsafe_code)]

use crate::error::Error;
use rustix::process::{getpriority_process, setpriority_process};
use std::io;

/// A tenth of the weight of a program at the usual 0 (`sched(7)`). Not SCHED_BATCH, whose share
/// stays whole; not SCHED_IDLE nor 19, which on a busy host may leave too little for the signs of
/// life that a peer waits for.
const NICE: i32 = 10;

/// The idle class, at its only level: served when nobody else wants the disk (`ioprio_set(2)`).
/// mq-deadline knows classes alone, so that the lowest best-effort level would be as good as any.
const IDLE: libc::c_long = 3 << 13;
/// `IOPRIO_WHO_PROCESS`: one thread.
const ONE_THREAD: libc::c_long = 1;

/// Lets everything else on this host come first: nice value 10 (or what it is, if that is more) and
/// the idle I/O class, for the calling thread and those that it starts from then on. Call it first.
///
/// # Errors
/// The system forbids it (a seccomp filter may).
pub fn yield_to_others() -> Result<(), Error> {
    let refused = |cause: io::Error| Error::new("lower the priority of this process", cause);
    let now = getpriority_process(None).map_err(|e| refused(e.into()))?;
    // Less than what somebody has chosen already would be more.
    setpriority_process(None, now.max(NICE)).map_err(|e| refused(e.into()))?;
    // SAFETY: takes three integers and touches no memory; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0, IDLE) } {
        -1 => Err(refused(io::Error::last_os_error())),
        _ => Ok(()),
    }
}
