//! Connections that break, one or all of them, and a network that goes away for a while: the job goes
//! on, and what arrives is what was sent. J2, and what follows when nothing comes back.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../watch/mod.rs"]
mod watch;

mod bed;

mod gone;
mod network;
mod one_connection;
mod slow_disk;
mod stopped;
