//! Standard output and standard error. Whoever reads them may be gone, or their disk full: that ends
//! no job.

use std::borrow::Cow;
use std::io::{self, Write};

/// One line for people, on standard error; several where a remote shell said several.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", visible(line));
}

/// Without what a terminal would obey: names, and what the other host says, are not to be trusted
/// with it.
fn visible(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut out = String::new();
    for c in text.chars() {
        if obeyed(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out.into()
}

/// One line of the result, on standard output. A reader that is gone has read enough; any other
/// failure is told on standard error, since a script may miss the line.
pub fn say(line: &str) {
    match writeln!(io::stdout(), "{}", visible(line)) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("vmferry: cannot write to standard output: {e}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nobody_elses_text() {
        assert_eq!(visible("a\tb\né"), "a\tb\né");
        assert_eq!(visible("\u{1b}]0;x\u{7}\r\u{9b}"), "\\u{1b}]0;x\\u{7}\\r\\u{9b}");
    }
}
