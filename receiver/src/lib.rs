//! The receiving half of a move.
//!
//! ```text
//! network ─→ lane 1 ─→ verify ─→ write (engine) ─→ session ─→ acks ─→ control
//! network ─→ lane N ─→ verify ─┘                      └─→ flush ─→ durable acks
//!                                        Finish ─→ flush ─→ compare ─→ rename ─→ Committed
//! ```
//! Goals: nothing is written that was not verified, nothing acknowledged as durable that a power
//! cut can take back, nothing of a destination changed before its copy is complete (but for block
//! devices, which have no second name), and only files that this run made are ever removed. Non-goals: how this process was started, printing.
//!
//! Rooms: `target` where images go, `terms` what this side insists on, `peer` the sender in messages, `part` part files and their commit,
//! `leftover` those of earlier attempts, `ledger` what of a copy is durable, `logbook` when that is noted, `state` where that of a device lies, `resume` whether it is gone on with, `delta` copies that begin with an older one, `base` what that holds, `owner` whose copies are, `device` block devices, `lane` data lanes,
//! `flush` durability, `conversation` the control connections, `prepare` from a wish to a job, `job` all together, `ending` what stays of it;
//! [`survey`] hashes what is there, [`unfinished`] lists and drops what interrupted jobs left.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod base;
mod conversation;
mod delta;
mod device;
mod door;
mod ending;
mod flush;
mod ground;
pub mod job;
mod lane;
mod ledger;
mod leftover;
mod logbook;
mod meter;
mod owner;
mod part;
mod peer;
mod prepare;
mod quota;
mod readback;
mod resume;
pub mod rules;
pub mod service;
mod state;
pub mod survey;
mod target;
mod terms;
pub mod unfinished;

pub use job::{Config, run};
pub use quota::Limits;
pub use terms::{Asked, Terms};
