//! Standard output and standard error. Whoever reads them may be gone, or their disk full: that ends
//! no job.

use std::io::{self, Write};

/// One line for people, on standard error.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// One line of the result, on standard output. A reader that is gone has read enough; any other
/// failure is told on standard error, since a script may miss the line.
pub fn say(line: &str) {
    match writeln!(io::stdout(), "{line}") {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("vmferry: cannot write to standard output: {e}"));
        }
        _ => {}
    }
}
