//! Failures that people meet in the field with tools that do this job, and the right behaviour:
//! one module per theme, the number of the case in the name of the test.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../ferry/mod.rs"]
mod ferry;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../watch/mod.rs"]
mod watch;

mod allocation;
mod changed_source;
mod checksums;
mod clean_up;
mod direct_io;
mod failed_writes;
mod full_pool;
mod host_names;
mod in_use;
mod labels;
mod links;
mod lost_flush;
mod no_uring;
mod odd_sizes;
mod owner_and_mode;
mod page_cache;
mod qcow2;
mod reasons;
mod silence;
mod stalled;
mod wire;
