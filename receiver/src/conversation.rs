//! The conversation with the sender, over one control connection after the other.
//!
//! A connection is used from the first word that comes in on it, and takes the place of the one before,
//! even of one that seems to live: whoever joins has proven to be the session's sender, and a sender
//! that connects again knows better. One that is merely silent is kept until then: its sender may have
//! been stopped, and go on.

use std::time::Duration;

use lanes::{Error, Lane, message};
use proto::control::{CONTROL, ToReceiver, ToSender};
use tokio::io::ReadHalf;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout, timeout_at};

use crate::door::Joined;

/// A sender all of whose connections ended has so long to come back: one that is there does so in a
/// fraction of a second.
const RETURN: Duration = Duration::from_secs(5);
/// The same, when it has probably heard why it is over.
const RECALL: Duration = Duration::from_secs(1);
/// Messages that wait to be heard; a sender that says more has to wait as well.
const HEARD: usize = 16;

/// What comes of listening.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The sender said something.
    Said(ToReceiver),
    /// The same, on a new connection or after a silence: what was said before may be lost.
    SaidAnew(ToReceiver),
    /// The connection broke or fell silent: see [`Conversation::absence`].
    Lost,
}

/// One control connection.
#[derive(Debug)]
struct Line {
    number: u64,
    say: mpsc::UnboundedSender<ToSender>,
    speaker: JoinHandle<Result<(), Error>>,
    ear: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.ear.abort();
        self.speaker.abort();
    }
}

/// The conversation of one job.
#[derive(Debug)]
pub(crate) struct Conversation {
    dead_after: Duration,
    /// In use.
    line: Line,
    /// Joined later; nothing was heard on them yet.
    waiting: Vec<Line>,
    lines: u64,
    hear: mpsc::Sender<(u64, Result<ToReceiver, Error>)>,
    heard: mpsc::Receiver<(u64, Result<ToReceiver, Error>)>,
    /// Since when, and why, nothing is heard.
    absence: Option<Absence>,
    given_up: bool,
}

/// A sender that is not heard.
#[derive(Debug)]
struct Absence {
    reason: Error,
    since: Instant,
    /// When the last of its connections ended.
    last_end: Instant,
    /// One of them fell silent instead: the way there may be cut, and the sender alive.
    silent: bool,
}

impl Conversation {
    pub(crate) fn new(control: Lane, dead_after: Duration) -> Conversation {
        let (hear, heard) = mpsc::channel(HEARD);
        let line = Line::new(0, control, dead_after, hear.clone());
        Conversation {
            dead_after,
            line,
            waiting: Vec::new(),
            lines: 0,
            hear,
            heard,
            absence: None,
            given_up: false,
        }
    }

    /// One more control connection has joined.
    pub(crate) fn join(&mut self, control: Lane) {
        self.lines += 1;
        self.waiting.push(Line::new(self.lines, control, self.dead_after, self.hear.clone()));
    }

    /// To the sender, if it can be reached. Whatever matters is said again on the next connection.
    pub(crate) fn say(&self, message: ToSender) {
        let _ = self.line.say.send(message);
    }

    /// Waits for what comes next. Cancel-safe.
    pub(crate) async fn hear(&mut self) -> Heard {
        loop {
            // `self.hear` keeps it open.
            let Some((number, heard)) = self.heard.recv().await else { std::future::pending().await };
            let at = self.waiting.iter().position(|line| line.number == number);
            match (heard, at) {
                (Ok(message), Some(at)) => {
                    self.line = self.waiting.swap_remove(at);
                    self.waiting.retain(|line| line.number > number);
                    self.absence = None;
                    return Heard::SaidAnew(message);
                }
                (Ok(message), None) if number == self.line.number => {
                    return match self.absence.take() {
                        Some(_) => Heard::SaidAnew(message),
                        None => Heard::Said(message),
                    };
                }
                (Err(e), None) if number == self.line.number => {
                    self.ended(&e);
                    let (since, silent) = (Instant::now(), e.is_silence());
                    self.absence.get_or_insert(Absence { reason: e, since, last_end: since, silent });
                    return Heard::Lost;
                }
                (Err(_), Some(at)) => drop(self.waiting.swap_remove(at)),
                // Of a connection that was replaced.
                _ => {}
            }
        }
    }

    /// A connection of the sender, of whatever kind, has ended.
    pub(crate) fn ended(&mut self, e: &Error) {
        if let Some(absence) = &mut self.absence {
            absence.last_end = Instant::now();
            absence.silent |= e.is_silence();
        }
    }

    /// When a sender that is not heard is given up; nothing while it is heard. `lanes`: data lanes that
    /// stand.
    pub(crate) fn deadline(&self, lanes: usize, patience: Duration) -> Option<Instant> {
        let absence = self.absence.as_ref()?;
        let patient = absence.since + patience;
        Some(if self.is_gone(lanes) { patient.min(absence.last_end + RETURN) } else { patient })
    }

    /// All its connections were ended, as those of a process are that ends. Else the sender may only be
    /// out of reach.
    pub(crate) fn is_gone(&self, lanes: usize) -> bool {
        lanes == 0 && self.absence.as_ref().is_some_and(|a| !a.silent)
    }

    /// Why the sender is not heard, if it is not.
    pub(crate) fn absence(&self) -> Option<&Error> {
        self.absence.as_ref().map(|a| &a.reason)
    }

    /// The sender is not waited for any more.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Says the last word, if there is one, and waits until it is said; then until the sender has closed,
    /// so that its own last word is not lost to a reset. Each takes at most so long. A sender whose
    /// connection broke may come back for the word.
    pub(crate) async fn end(
        mut self,
        last: Option<ToSender>,
        joined: &mut Joined,
        speaking: Duration,
        closing: Duration,
    ) {
        let end = Instant::now() + RETURN;
        loop {
            last.iter().for_each(|word| self.say(word.clone()));
            let (silent, _) = mpsc::unbounded_channel();
            drop(std::mem::replace(&mut self.line.say, silent));
            let said = timeout(speaking, &mut self.line.speaker).await;
            let closed = async {
                while self.absence.is_none() {
                    self.hear().await;
                }
            };
            let _ = timeout(closing, closed).await;
            let back_by = match (&said, &self.absence) {
                _ if last.is_none() || self.given_up => return,
                (Ok(Ok(Err(_))), _) => end,
                // It may have heard the word, and have closed without having read everything.
                (_, Some(Absence { reason: Error::Io(_), .. })) => end.min(Instant::now() + RECALL),
                _ => return,
            };
            if timeout_at(back_by, self.back(joined)).await.is_err() {
                return;
            }
        }
    }

    /// Ready when the sender is heard on another connection.
    async fn back(&mut self, joined: &mut Joined) {
        let broken = self.line.number;
        while self.line.number == broken {
            tokio::select! {
                Some((id, lane)) = joined.recv() => if id == CONTROL { self.join(lane) },
                _ = self.hear() => {}
            }
        }
    }
}

impl Line {
    fn new(
        number: u64,
        control: Lane,
        dead_after: Duration,
        hear: mpsc::Sender<(u64, Result<ToReceiver, Error>)>,
    ) -> Line {
        let (from, to) = tokio::io::split(control);
        let (say, queue) = mpsc::unbounded_channel();
        let speaker = tokio::spawn(message::speak(to, dead_after, queue, ToSender::Heartbeat));
        let ear = tokio::spawn(listen(number, from, dead_after, hear)).abort_handle();
        Line { number, say, speaker, ear }
    }
}

/// Passes on what the sender says until the connection ends; silence is told and outlasted.
async fn listen(
    number: u64,
    mut from: ReadHalf<Lane>,
    dead_after: Duration,
    hear: mpsc::Sender<(u64, Result<ToReceiver, Error>)>,
) {
    loop {
        let silent = |e| {
            // No room: then it was not silent.
            let _ = hear.try_send((number, Err(e)));
        };
        let message = message::receive_after_silence(&mut from, dead_after, silent).await;
        let ended = message.is_err();
        if hear.send((number, message)).await.is_err() || ended {
            return;
        }
    }
}
