//! Figures for Prometheus, as a file that the node exporter's textfile collector reads: no second
//! port, and no HTTP in a service that takes care whom it listens to.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use receiver::service::Totals;

/// Writes the file as a whole.
///
/// # Errors
/// What the file system says.
pub fn write(file: &Path, totals: &Totals) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text(totals))?;
    std::fs::rename(&new, file)
}

fn text(totals: &Totals) -> String {
    let sum = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let figures = [
        ("jobs_running", "gauge", "Jobs under way.", totals.running() as u64),
        ("jobs_done_total", "counter", "Jobs that ended well.", sum(&totals.jobs_done)),
        ("jobs_failed_total", "counter", "Jobs that failed.", sum(&totals.jobs_failed)),
        (
            "requests_refused_total",
            "counter",
            "Requests of known keys that were refused.",
            sum(&totals.refused),
        ),
        ("turned_away_total", "counter", "Connections that were not let in.", sum(&totals.turned_away)),
        ("images_total", "counter", "Images that have their final names.", sum(&totals.images)),
        ("received_bytes_total", "counter", "Bytes of image data received.", totals.received_bytes()),
    ];
    let mut out = String::new();
    for (name, kind, help, value) in figures {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "# HELP vmferry_{name} {help}\n# TYPE vmferry_{name} {kind}\nvmferry_{name} {value}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_format() {
        let totals = Totals::default();
        totals.images.store(3, Ordering::Relaxed);
        let text = text(&totals);
        assert!(text.contains("# TYPE vmferry_images_total counter\nvmferry_images_total 3\n"), "{text}");
        assert_eq!(text.lines().count(), 21);
    }
}
