//! What vmferry is measured against, and how it is run for that.
//!
//! The binary `rawloop` is the physical bound: the least that any mover of images must do, and
//! nothing else. No verification, no resumption, no encryption.

pub mod ferry;
pub mod figures;
pub mod peaks;
