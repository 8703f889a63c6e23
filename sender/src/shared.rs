//! What the tasks of one job share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::control::{LaneId, ToReceiver};
use proto::session::{SenderSession, Unit};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use crate::job::Event;
use crate::known::Answer;
use crate::limit::Limit;
use crate::meter::Meter;

/// State shared by the tasks of one job.
#[derive(Debug)]
pub(crate) struct Shared {
    session: Mutex<SenderSession>,
    pub(crate) limit: Option<Limit>,
    pub(crate) meter: Arc<Meter>,
    /// Something was acknowledged or planned to its end.
    pub(crate) progressed: Notify,
    /// The receiver closed a lane.
    pub(crate) lane_closed: watch::Sender<()>,
    /// Whether the control connection stands.
    pub(crate) control: watch::Sender<bool>,
    /// Lanes that carry units.
    pub(crate) lanes_up: watch::Sender<u32>,
    say: mpsc::UnboundedSender<ToReceiver>,
    returned: mpsc::UnboundedSender<Unit>,
    answered: mpsc::UnboundedSender<Answer>,
    tell: mpsc::UnboundedSender<Event>,
}

/// The other ends of its queues.
pub(crate) struct Ends {
    /// To be said to the receiver.
    pub(crate) queue: mpsc::UnboundedReceiver<ToReceiver>,
    /// To be sent once more.
    pub(crate) returned: mpsc::UnboundedReceiver<Unit>,
    /// What the receiver answered to the reader.
    pub(crate) answers: mpsc::UnboundedReceiver<Answer>,
    /// To be told to the user.
    pub(crate) told: mpsc::UnboundedReceiver<Event>,
}

impl Shared {
    pub(crate) fn new(
        session: SenderSession,
        limit: Option<Limit>,
        meter: Arc<Meter>,
    ) -> (Arc<Shared>, Ends) {
        let (say, queue) = mpsc::unbounded_channel();
        let (give, returned) = mpsc::unbounded_channel();
        let (answered, answers) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::unbounded_channel();
        let shared = Shared {
            session: Mutex::new(session),
            limit,
            meter,
            progressed: Notify::new(),
            lane_closed: watch::Sender::new(()),
            control: watch::Sender::new(true),
            lanes_up: watch::Sender::new(0),
            say,
            returned: give,
            answered,
            tell,
        };
        (Arc::new(shared), Ends { queue, returned, answers, told })
    }

    pub(crate) fn session(&self) -> MutexGuard<'_, SenderSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To the receiver, as soon as there is a connection; `false` when the conversation is over.
    pub(crate) fn say(&self, message: ToReceiver) -> bool {
        self.say.send(message).is_ok()
    }

    /// To the reader.
    pub(crate) fn answer(&self, answer: Answer) {
        // When nobody reads any more, nobody asked.
        let _ = self.answered.send(answer);
    }

    /// These have to be sent once more.
    pub(crate) fn give_back(&self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            // Nobody takes it: the job is over.
            let _ = self.returned.send(unit);
        }
    }

    /// The lane broke or was not joined: the receiver is to close it.
    pub(crate) fn lose_lane(&self, id: LaneId) {
        let closed = {
            let mut session = self.session();
            session.lose_lane(id);
            session.is_closed(id)
        };
        if !closed {
            self.say(ToReceiver::LaneLost(id));
        }
    }

    /// Ready when the receiver has closed the lane.
    pub(crate) async fn until_closed(&self, id: LaneId) {
        let _ = self.lane_closed.subscribe().wait_for(|()| self.session().is_closed(id)).await;
    }

    pub(crate) fn control_is_up(&self, up: bool) {
        self.control.send_replace(up);
    }

    /// Ready when there was no lane for so long while the control connection stood.
    pub(crate) async fn without_lanes(&self, patience: Duration) {
        let (mut lanes, mut control) = (self.lanes_up.subscribe(), self.control.subscribe());
        loop {
            // Neither sender can be gone while `self` is there.
            let _ = lanes.wait_for(|up| *up == 0).await;
            let _ = control.wait_for(|up| *up).await;
            tokio::select! {
                _ = lanes.wait_for(|up| *up > 0) => {}
                _ = control.wait_for(|up| !up) => {}
                () = sleep(patience) => return,
            }
        }
    }

    pub(crate) fn tell_lost(&self, connection: u32, reason: &lanes::Error) {
        let _ = self.tell.send(Event::Lost { connection, reason: reason.to_string() });
    }

    pub(crate) fn tell_restored(&self, connection: u32) {
        let _ = self.tell.send(Event::Restored { connection });
    }
}
