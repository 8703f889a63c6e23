//! The vmferry wire protocol, version 1.
//!
//! Goals: one place that says what travels; parsers that bound everything before they allocate;
//! session state that can be tested without sockets. Non-goals: I/O, time, buffers, encryption.
//!
//! # A job
//!
//! ```text
//! sender                                      receiver
//!   (remote shell's stdin)                      (its stdout)
//!   noise-skipping magic, Hello, Bootstrap  →
//!                                           ←  magic, Hello, BootstrapReply::Ready
//!   control connection: Hello, join lane 0  ↔
//!   Open                                    →
//!                                           ←  Accept            (or Fail: nothing was changed)
//!   lanes 1..N: Hello, join, then frames    →
//!                                           ←  Ack … Ack         (written, durable; cumulative)
//!   Finish{image, tree}                     →  flush, compare, rename
//!                                           ←  Committed{image, tree}
//!   Done                                    →  remove the ledgers
//!                                           ←  Done
//! ```
//! In a pull the receiver starts the sender, see [`errand`].
//!
//! Heartbeats run both ways on the control connection all the time; a peer silent for longer than
//! the agreed time is dead. Either side may say why it ends (`Abort`, `Fail`): the first reason is
//! the one that both ends print.
//!
//! Rooms: [`geometry`] fixed sizes, [`version`] hello, [`join`] proof of belonging, [`seal`]
//! frame tags of lanes without TLS, [`manifest`] what is moved, [`owner`] whose the copies are, [`control`] messages, [`errand`] those of a pull, [`frame`] data header, [`extents`] maps and run sets,
//! [`leaves`] hashes of a chunk, [`granules`] of what outlives a job, [`digest`] of whole images,
//! [`verify`] a comparison of two,
//! [`telemetry`] where a host's time goes, [`session`] both state machines (with their state table).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod control;
pub mod digest;
pub mod errand;
pub mod extents;
pub mod frame;
pub mod geometry;
pub mod granules;
pub mod join;
pub mod leaves;
pub mod manifest;
pub mod owner;
pub mod seal;
pub mod session;
pub mod telemetry;
pub mod verify;
pub mod version;
