//! Two hosts on one machine, for tests, benches and the demo of vmferry.
//!
//! Goals: what goes wrong between two real hosts can be made to happen on one,
//! as often as a test likes and from several test processes at once:
//!
//! - [`net`]: two network namespaces and the links between them, with a total
//!   rate, a rate per connection, a delay, an MTU, and ways to cut them;
//! - [`disk`]: disks in a file with a chosen sector size, file system and speed,
//!   that can lose power;
//! - [`faults`]: a file system that answers chosen calls wrongly;
//! - [`images`]: images with reproducible content, and an independent compare;
//! - [`seccomp`]: a process that may not use io_uring.
//!
//! Everything is removed when its handle is dropped, also while a test panics.
//!
//! Non-goals: it never runs in production, needs root, and knows Linux only. A
//! prerequisite that is not there is an [`Error`] that names what to install; a
//! test is never skipped silently. Two libvirt hosts are built on top of this,
//! not here.

pub mod disk;
mod error;
pub mod faults;
pub mod images;
pub mod net;
mod run;
pub mod seccomp;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub use error::{Error, Result};

/// The `testbed` binary that was built beside the running test or bench.
///
/// # Errors
/// [`Error::Missing`] when it was not built; the message names the command.
pub fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|source| Error::io("finding the path of the running program", source))?;
    let mut folder = own.parent();
    // Tests and benches lie in `deps`, one below the binaries of the workspace.
    if let Some(deps) = folder.filter(|path| path.ends_with("deps")) {
        folder = deps.parent();
    }
    let profile = match folder.and_then(|path| path.file_name()) {
        Some(name) if name == "release" => " --release",
        _ => "",
    };
    folder.map(|path| path.join("testbed")).filter(|path| path.is_file()).ok_or_else(|| Error::Missing {
        what: "the testbed binary".into(),
        cure: format!("run `cargo build -p vmferry-testbed{profile}`"),
    })
}

/// A name that no other handle of this process or of another one alive has.
fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("vmf-{}-{number}", std::process::id())
}
