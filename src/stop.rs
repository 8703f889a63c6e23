//! When somebody, or the system, wants an end.

use proto::control::Failure;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit;

/// From now on a file that grows over the limit of this process (RLIMIT_FSIZE) is an error like
/// others, EFBIG, and not the end of the process: handlers take that from SIGXFSZ (setrlimit(2)).
pub fn not_at_file_limit() {
    /// SIGXFSZ on x86 and ARM (signal(7)).
    const FILE_LIMIT: i32 = 25;
    // Without a handler the signal does what it always does.
    let _ = signal(SignalKind::from_raw(FILE_LIMIT));
}

/// Ready at Ctrl-C, SIGTERM, or when the terminal goes away, with the sentence to end with. With
/// `hang_up` false the last is ignored: a receiver outlives its remote shell.
pub async fn requested(sentence: &'static str, hang_up: bool) -> Failure {
    let ignored = hang_up_ignored();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut int), Ok(mut term), Ok(mut hup)] = kinds.map(signal) else {
        // Without handlers the signals do what they always do.
        return std::future::pending().await;
    };
    // Installing a handler undid what nohup(1) had set up.
    let hang_up = hang_up && !ignored;
    let hung_up = async {
        loop {
            hup.recv().await;
            if hang_up {
                return;
            }
        }
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
        () = hung_up => {}
    }
    Failure::new(exit::INTERRUPTED, sentence)
}

/// Whether SIGHUP, number 1, was ignored when this program was started: then bit 0 of `SigIgn` in
/// proc_pid_status(5) is set.
fn hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}
