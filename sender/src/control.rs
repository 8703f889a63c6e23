//! The control connection: what the receiver says, and what is said to it.

use std::sync::Arc;
use std::time::Duration;

use lanes::{Error, Lane, message};
use proto::control::{Failure, ToSender};
use proto::session::Violation;
use tokio::io::ReadHalf;
use tokio::sync::mpsc;

use crate::job::Shared;
use crate::known::Answer;

/// An image is in place.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) image: u32,
    pub(crate) tree: [u8; 32],
    pub(crate) path: String,
    pub(crate) notices: Vec<String>,
}

/// Why the control connection ended the job.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The receiver said so.
    ByReceiver(Failure),
    /// The connection broke or fell silent.
    Lost(Error),
    /// The receiver broke the protocol.
    Violation(String),
    /// Everything is done at the receiver, too.
    Done,
}

impl From<Violation> for Ended {
    fn from(v: Violation) -> Ended {
        Ended::Violation(v.to_string())
    }
}

/// Takes in messages until the receiver ends the conversation.
pub(crate) async fn listen(
    mut from: ReadHalf<Lane>,
    dead_after: Duration,
    committed: mpsc::UnboundedSender<Committed>,
    answers: mpsc::UnboundedSender<Answer>,
    shared: Arc<Shared>,
) -> Ended {
    loop {
        let message = match message::receive_alive(&mut from, dead_after).await {
            Ok(message) => message,
            Err(e) => return Ended::Lost(e),
        };
        if let Err(ended) = apply(message, &committed, &answers, &shared) {
            return ended;
        }
    }
}

fn apply(
    message: ToSender,
    committed: &mpsc::UnboundedSender<Committed>,
    answers: &mpsc::UnboundedSender<Answer>,
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
            let mut session = shared.session();
            session.acknowledge(ack)?;
            shared.meter.set_totals(session.totals());
            shared.progressed.notify_one();
        }
        ToSender::Stages(stages) => shared.meter.set_receiver(stages),
        ToSender::Committed { image, tree, path, notices } => {
            shared.session().committed(image)?;
            let _ = committed.send(Committed { image, tree, path, notices });
        }
        ToSender::Done => return Err(Ended::Done),
        ToSender::Fail(failure) => return Err(Ended::ByReceiver(failure)),
        ToSender::Heartbeat => {}
        // When nobody reads any more, nobody asked.
        ToSender::Known { image, from, runs, next } => {
            drop(answers.send(Answer::Known { image, from, runs, next }));
        }
        ToSender::Found { image, from, pieces, next } => {
            drop(answers.send(Answer::Found { image, from, pieces, next }));
        }
        ToSender::Accept(_) => return Err(Ended::Violation("it accepted the job twice".into())),
    }
    Ok(())
}
