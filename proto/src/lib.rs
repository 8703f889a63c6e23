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
//! A lane that breaks (here the sender notices; when the receiver does, the first line is not said):
//! ```text
//!   LaneLost(3)                             →  drop lane 3, let its writes end
//!                                           ←  LaneClosed(3, written, durable)
//!   lane N+1: Hello, join, then the frames above `written` again, on whichever lane is free
//! ```
//! A control connection that breaks; data lanes go on meanwhile:
//! ```text
//!   control connection: Hello, join lane 0  ↔  (the old one stays in use until the next line)
//!   Heartbeat, LaneLost …, Finish …         →  all that was not answered
//!                                           ←  Ack, LaneClosed … of all lanes, Committed …
//! ```
//! So every message may be said twice, and means the same the second time. On data lanes the receiver
//! writes a byte now and then, which only says that the lane is alive.
//!
//! In a pull the receiver starts the sender, see [`errand`].
//!
//! Heartbeats run both ways on the control connection all the time, and from the receiver to the sender
//! on data lanes; a connection silent for longer than the agreed time is dead. A peer without any
//! connection may come back for as long as the patience that was agreed. Either side may say why it ends (`Abort`, `Fail`): the first reason is
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
