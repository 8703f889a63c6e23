//! The service: whom it lets in, what it gives them, and what it bears.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../watch/mod.rs"]
mod watch;

mod attack;
mod house;

mod activation;
mod callers;
mod copies;
mod door;
mod ground;
mod keys;
mod life;
mod limits;
mod one_job;
mod reload;
