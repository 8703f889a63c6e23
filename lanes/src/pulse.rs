//! Signs of life on data lanes.
//!
//! A receiver takes nothing off a lane while its disk is in a long flush, so neither data that stand
//! still nor TCP_USER_TIMEOUT tell a lane that died in silence from one that waits. So the receiver
//! writes a byte on each lane now and then, in the direction that nothing else uses, and the sender
//! listens for it. Both do it beside whatever they do with the lane, in the same task: a poll costs no
//! system call while no beat is due and none has come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::message::BEATS;
use crate::stream::Connection;

/// What is written; any byte does.
const BEAT: u8 = 0;

/// This end's part in it.
#[derive(Debug, Default)]
pub(crate) enum Pulse {
    /// None: control connections, and lanes that are still being joined.
    #[default]
    Off,
    /// Writes beats.
    Beats { due: Interval, owed: Owed },
    /// Listens for them; so many times there was none.
    Listens { due: Interval, missed: u32, dead_after: Duration },
}

/// How far a beat has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    Nothing,
    Byte,
    Flush,
}

impl Pulse {
    pub(crate) fn beats(dead_after: Duration) -> Pulse {
        Pulse::Beats { due: every(dead_after / BEATS), owed: Owed::Byte }
    }

    pub(crate) fn listens(dead_after: Duration) -> Pulse {
        Pulse::Listens { due: every(dead_after / BEATS), missed: 0, dead_after }
    }

    /// Does what is due; ready only when the connection is dead, with the reason.
    pub(crate) fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            Pulse::Off => Poll::Pending,
            Pulse::Beats { due, owed } => {
                while due.poll_tick(cx).is_ready() {
                    *owed = Owed::Byte;
                }
                if *owed == Owed::Byte {
                    match ready!(Pin::new(&mut *connection).poll_write(cx, &[BEAT])) {
                        Ok(_) => *owed = Owed::Flush,
                        Err(e) => return Poll::Ready(e),
                    }
                }
                if *owed == Owed::Flush {
                    match ready!(Pin::new(connection).poll_flush(cx)) {
                        Ok(()) => *owed = Owed::Nothing,
                        Err(e) => return Poll::Ready(e),
                    }
                }
                Poll::Pending
            }
            Pulse::Listens { due, missed, dead_after } => {
                let mut bytes = [0; 64];
                loop {
                    let mut heard = ReadBuf::new(&mut bytes);
                    match Pin::new(&mut *connection).poll_read(cx, &mut heard) {
                        Poll::Pending => break,
                        Poll::Ready(Err(e)) => return Poll::Ready(e),
                        Poll::Ready(Ok(())) if heard.filled().is_empty() => {
                            return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
                        }
                        Poll::Ready(Ok(())) => *missed = 0,
                    }
                }
                // One at a time: when it is this process that was stopped, what came in meanwhile is
                // heard before the next.
                while due.poll_tick(cx).is_ready() {
                    *missed += 1;
                }
                if *missed > BEATS {
                    let reason = format!("nothing heard for {} s", dead_after.as_secs());
                    return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, reason));
                }
                Poll::Pending
            }
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut due = interval_at(Instant::now() + period, period);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due
}
