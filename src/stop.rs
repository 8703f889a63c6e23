//! When somebody, or the system, wants an end.

use proto::control::Failure;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit;

/// Ready at Ctrl-C, SIGTERM, or when the terminal goes away, with the sentence to end with. With
/// `hang_up` false the last is ignored: a receiver outlives its remote shell.
pub async fn requested(sentence: &'static str, hang_up: bool) -> Failure {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut int), Ok(mut term), Ok(mut hup)] = kinds.map(signal) else {
        // Without handlers the signals do what they always do.
        return std::future::pending().await;
    };
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
