//! What fails, fails at once or in bounded time, with one sentence and the right exit code, and
//! leaves nothing behind: the source as it was, the destination as it was, no process.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;

mod command_line;
mod destinations;
mod endings;
mod no_space;
mod peers;
mod ports;
mod shells;
mod sources;
mod strangers;
