//! The conversation with the receiver, over one control connection after the other.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lanes::dial::Dialer;
use lanes::{Error, Lane, message};
use proto::control::{CONTROL, Failure, ToReceiver, ToSender};
use proto::session::Violation;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::job::{REASON_GRACE, Shared};
use crate::known::Answer;
use crate::reconnect::{self, GaveUp};

/// An image is in place.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) image: u32,
    pub(crate) tree: [u8; 32],
    pub(crate) path: String,
    pub(crate) notices: Vec<String>,
}

/// How the conversation ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Our last word is said.
    Said,
    /// The receiver ended the job.
    ByReceiver(Failure),
    /// The connection broke or fell silent, and could not be made again.
    Lost(Error, GaveUp),
    /// The receiver broke the protocol.
    Violation(String),
    /// What came in is not what was sent.
    Damaged(Error),
    /// Everything is done at the receiver, too.
    Done,
}

impl From<Violation> for Ended {
    fn from(v: Violation) -> Ended {
        Ended::Violation(v.to_string())
    }
}

/// How one connection ended.
enum Held {
    Over(Ended),
    Broke(Error),
}

impl From<Error> for Held {
    fn from(e: Error) -> Held {
        match e {
            Error::Message(e) => Held::Over(Ended::Violation(e.to_string())),
            e if e.is_damage() => Held::Over(Ended::Damaged(e)),
            e => Held::Broke(e),
        }
    }
}

/// The conversation of one job.
pub(crate) struct Conversation {
    pub(crate) dialer: Dialer,
    /// Where control may be connected, best first.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) dead_after: Duration,
    pub(crate) patience: Duration,
    /// What is to be said.
    pub(crate) queue: mpsc::UnboundedReceiver<ToReceiver>,
    pub(crate) committed: mpsc::UnboundedSender<Committed>,
    pub(crate) shared: Arc<Shared>,
    /// All is in place, and the receiver was told so.
    pub(crate) done: bool,
}

impl Conversation {
    /// Talks until one of both ends it. A connection that breaks is made again.
    pub(crate) async fn run(mut self, mut control: Lane) -> Ended {
        loop {
            let reason = match self.hold(control).await {
                Held::Over(ended) => return ended,
                Held::Broke(e) => e,
            };
            self.shared.control_is_up(false);
            self.shared.tell_lost(CONTROL.0, &reason);
            control = match reconnect::control(&self.dialer, &self.addresses, self.patience).await {
                Ok(control) => control,
                Err(gave_up) => return Ended::Lost(reason, gave_up),
            };
            self.shared.control_is_up(true);
            self.shared.tell_restored(CONTROL.0);
        }
    }

    /// Uses one connection for as long as it lasts.
    async fn hold(&mut self, control: Lane) -> Held {
        let (from, to) = tokio::io::split(control);
        let mut listening = pin!(listen(from, self.dead_after, &self.committed, &self.shared));
        tokio::select! {
            held = &mut listening => held,
            said = speak(to, self.dead_after, &mut self.queue, &mut self.done, &self.shared) => match said {
                Ok(()) => Held::Over(Ended::Said),
                // The receiver's own reason may have come in before.
                Err(e) => timeout(REASON_GRACE, listening).await.unwrap_or_else(|_| e.into()),
            },
        }
    }
}

/// Says first what was not answered on the connection before, then what is queued, to the last word.
async fn speak(
    mut to: WriteHalf<Lane>,
    dead_after: Duration,
    queue: &mut mpsc::UnboundedReceiver<ToReceiver>,
    done: &mut bool,
    shared: &Shared,
) -> Result<(), Error> {
    message::send(&mut to, &ToReceiver::Heartbeat).await?;
    let unanswered = shared.session().unanswered();
    for message in unanswered.into_iter().chain(done.then_some(ToReceiver::Done)) {
        message::send(&mut to, &message).await?;
    }
    loop {
        let message = timeout(dead_after / message::BEATS, queue.recv()).await;
        let message = message.unwrap_or(Some(ToReceiver::Heartbeat));
        let Some(message) = message else { return Ok(()) };
        // It is answered.
        *done |= message == ToReceiver::Done;
        message::send(&mut to, &message).await?;
        if matches!(message, ToReceiver::Abort(_)) {
            return Ok(());
        }
    }
}

/// Takes in messages until the receiver ends the conversation or the connection breaks.
async fn listen(
    mut from: ReadHalf<Lane>,
    dead_after: Duration,
    committed: &mpsc::UnboundedSender<Committed>,
    shared: &Shared,
) -> Held {
    loop {
        let message = match message::receive_alive(&mut from, dead_after).await {
            Ok(message) => message,
            Err(e) => return e.into(),
        };
        if let Err(ended) = apply(message, committed, shared) {
            return Held::Over(ended);
        }
    }
}

fn apply(
    message: ToSender,
    committed: &mpsc::UnboundedSender<Committed>,
    shared: &Shared,
) -> Result<(), Ended> {
    match message {
        ToSender::Ack { lanes } => {
            let mut session = shared.session();
            lanes.into_iter().try_for_each(|ack| session.acknowledge(ack))?;
            shared.meter.set_totals(session.totals());
            shared.progressed.notify_one();
        }
        ToSender::LaneClosed(ack) => {
            let back = {
                let mut session = shared.session();
                let back = session.close_lane(ack)?;
                shared.meter.set_totals(session.totals());
                back
            };
            shared.give_back(back);
            shared.lane_closed.send_replace(());
            shared.progressed.notify_one();
        }
        ToSender::Stages(stages) => shared.meter.set_receiver(stages),
        ToSender::Committed { image, tree, path, notices } => {
            if shared.session().committed(image)? {
                let _ = committed.send(Committed { image, tree, path, notices });
            }
        }
        ToSender::Done => return Err(Ended::Done),
        ToSender::Fail(failure) => return Err(Ended::ByReceiver(failure)),
        ToSender::Heartbeat => {}
        ToSender::Known { image, from, runs, next } => {
            shared.answer(Answer::Known { image, from, runs, next });
        }
        ToSender::Found { image, from, pieces, next } => {
            shared.answer(Answer::Found { image, from, pieces, next });
        }
        ToSender::Accept(_) => return Err(Ended::Violation("it accepted the job twice".into())),
    }
    Ok(())
}
