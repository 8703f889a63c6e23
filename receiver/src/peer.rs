//! What a job that failed says about the sender.

use std::time::Duration;

use lanes::Error;
use proto::control::Failure;

use crate::terms::Asked;

/// How the sender's host is called, if anybody on this side is to know.
pub(crate) struct Peer(Option<String>);

impl Peer {
    pub(crate) fn new(asked: Option<&Asked>) -> Peer {
        Peer(asked.map(|asked| asked.of.clone()))
    }

    /// Its own reason.
    pub(crate) fn says(&self, failure: Failure) -> Failure {
        match &self.0 {
            // No sender talks this side into calling a failure a success.
            Some(host) => Failure::new(failure.exit.max(1), format!("{host}: {}", failure.reason)),
            None => failure,
        }
    }

    /// It fell silent, or its connection broke.
    pub(crate) fn gone(&self, e: &Error) -> Failure {
        if e.is_silence() {
            let why = "it is stopped or hangs, or the way to it is cut: run the same command again";
            let who = self.0.as_deref().unwrap_or("the sender");
            return Failure::new(1, format!("{who} fell silent ({e}): {why}"));
        }
        let next = self.0.as_ref().map_or(String::new(), |host| {
            format!(": check {host} and the way to it, then run the same command again")
        });
        Failure::new(1, format!("the sender went away without a reason ({e}){next}"))
    }

    /// It was not heard again in time.
    pub(crate) fn stays_away(&self, e: &Error, patience: Duration) -> Failure {
        let who = self.0.as_deref().unwrap_or("the sender");
        let what = if e.is_silence() {
            format!("{who} fell silent")
        } else {
            format!("the connection to {who} was lost")
        };
        let reason = format!(
            "{what} ({e}) and it was not heard again within {} s: it is stopped or hangs, or the way to it is cut: run the same command again to go on",
            patience.as_secs()
        );
        Failure::new(6, reason)
    }
}
