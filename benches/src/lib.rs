//! What vmferry is measured against.
//!
//! The binary `rawloop` is the physical bound: the least that any mover of images must do, and
//! nothing else. No verification, no resumption, no encryption.
