//! Direct I/O for disk images: aligned buffers in huge pages, an io_uring engine, and the plain
//! engine that takes its place where io_uring is not allowed.
//!
//! # Goals
//!
//! * A block travels from the disk into one [`Buffer`] and from that buffer to the disk; nothing
//!   here copies payload.
//! * [`Engine`] gives the same results with and without io_uring, with and without `O_DIRECT`,
//!   with and without `fallocate(2)`. What had to be given up is a sentence in `notices()`.
//! * No error is lost: every [`Error`] names the operation, the path and the byte offset, and an
//!   image whose sync failed once never reports a successful sync again.
//!
//! # Non-goals
//!
//! Formats (an [`Image`] is a row of bytes), the network, progress, and any policy about what to
//! read or where to write.
//!
//! # Invariants
//!
//! * The kernel never holds an address that is not kept alive: an operation owns its buffer and
//!   its image until its completion is reaped, even when nobody waits for it any more; what can
//!   not be reaped is leaked, never freed.
//! * A buffer has one owner at any time, so nobody changes bytes that are on their way to a disk.
//! * All buffers of a [`Pool`] come out of one mapping that is made at the start: the pool is the
//!   byte budget.
//!
//! This crate is the only room of the house with `unsafe`, and within it only these modules have it:
//! `mapping` and `pool` (memory), `uring` and `plain` (system calls that take addresses), `locks`,
//! `device` and `priority` (`fcntl(2)`, `ioctl(2)` and `ioprio_set(2)`, which no safe wrapper offers).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod device;
mod engine;
mod error;
mod extents;
#[cfg(test)]
mod faults;
mod holders;
mod image;
mod in_use;
mod locks;
mod mapping;
mod op;
mod plain;
mod pool;
pub mod priority;
mod queue;
mod slab;
mod storage;
mod uring;
mod zero;

pub use device::Sectors;
pub use engine::{Engine, EngineChoice, EngineKind, ParseEngineError, SyncKind};
pub use error::Error;
pub use image::{Identity, Image};
pub use pool::{Buffer, Pool};
pub use queue::Stall;
pub use storage::Storage;

/// The least alignment, in bytes, of offsets, lengths and memory for direct I/O.
///
/// 512 is enough for many disks, but not for those with 4096-byte sectors, and 4096 costs the
/// others nothing.
pub const BLOCK: usize = 4096;

/// `O_DIRECT` of `open(2)`; its number differs between machines.
pub const O_DIRECT: i32 = libc::O_DIRECT;
