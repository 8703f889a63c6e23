//! Tells what happens to a job, in either direction, and what its end means.

use std::cell::RefCell;

use proto::control::Failure;
use sender::job::Event;

use crate::cli::Send;
use crate::exit;
use crate::progress::Progress;
use crate::report::Report;

/// Remembers what is in place, since a failure has to say so.
pub struct Narrator<'a> {
    args: &'a Send,
    report: &'a Report,
    progress: &'a Progress,
    in_place: RefCell<Vec<String>>,
    device: RefCell<Option<String>>,
}

impl<'a> Narrator<'a> {
    /// Of a job that begins.
    pub fn new(args: &'a Send, report: &'a Report, progress: &'a Progress) -> Narrator<'a> {
        Narrator { args, report, progress, in_place: RefCell::default(), device: RefCell::default() }
    }

    /// Tells of one event.
    pub fn tell(&self, event: Event) {
        match event {
            Event::Overwriting(path) => *self.device.borrow_mut() = Some(path),
            Event::Stalled(what) => {
                let notices = self.notices(vec![what], vec![]);
                self.progress.aside(|| self.report.stalled(&notices));
            }
            Event::Started { notices, theirs, peer } => {
                let notices = self.notices(notices, theirs);
                self.progress.aside(|| self.report.started(&notices, peer));
                self.progress.begin();
            }
            Event::Committed { name, path, notices, theirs } => {
                let notices = self.notices(notices, theirs);
                self.progress.aside(|| self.report.committed(&name, &path, &notices));
                self.in_place.borrow_mut().push(name);
            }
            Event::Lost { connection, reason } => {
                self.progress.aside(|| self.report.lost(connection, &reason));
            }
            Event::Restored { connection } => self.progress.aside(|| self.report.restored(connection)),
        }
    }

    /// What the sender and the receiver say; the name of the other host stands before its sentences.
    fn notices(&self, of_sender: Vec<String>, of_receiver: Vec<String>) -> Vec<String> {
        let named = |s: &String| format!("{}: {s}", self.args.to.host);
        if self.args.pull {
            of_sender.iter().map(named).chain(of_receiver).collect()
        } else {
            let theirs: Vec<String> = of_receiver.iter().map(named).collect();
            of_sender.into_iter().chain(theirs).collect()
        }
    }

    /// Takes the progress display away; a failure says what it left.
    ///
    /// # Errors
    /// The failure that went in, complete.
    pub fn conclude<T>(self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.progress.finish();
        result.map_err(|failure| {
            let failure = self.incomplete(failure);
            let names = self.in_place.borrow().join(", ");
            let reason = match failure.exit {
                _ if names.is_empty() => failure.reason,
                // Why it was, if not by the user, stands before.
                exit::INTERRUPTED if failure.reason.starts_with("interrupted") => {
                    format!("interrupted; already in place: {names}; send the rest again")
                }
                _ => format!("{}; already in place: {names}", failure.reason),
            };
            Failure { reason, ..failure }
        })
    }

    /// The failure of a job that was overwriting a device, which has no old state to go back to.
    fn incomplete(&self, failure: Failure) -> Failure {
        let Some(device) = self.device.take() else { return failure };
        let device = if self.args.pull { device } else { format!("{}:{device}", self.args.to.host) };
        let interrupted = failure.reason.starts_with("interrupted");
        let what = if interrupted { "interrupted" } else { &failure.reason };
        let next = if interrupted { ": run the same command again" } else { "" };
        Failure::new(failure.exit, format!("{what}; {device} holds an incomplete copy now{next}"))
    }
}
