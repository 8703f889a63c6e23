//! Connections that break are made again: how often it is tried, and when it is given up.

use std::net::SocketAddr;
use std::time::Duration;

use lanes::dial::Dialer;
use lanes::{Error, Lane};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Between two attempts: this at first, then twice as long each time.
const PAUSE: Duration = Duration::from_millis(100);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A host that answers and turns the connection away for so long has no receiver any more. One that is
/// there and merely busy closes nothing.
const REFUSED: Duration = Duration::from_secs(3);

/// Pauses that grow.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(PAUSE)
    }

    /// Waits; the next time longer.
    pub(crate) async fn pause(&mut self) {
        sleep(self.next()).await;
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// Why the control connection is not made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GaveUp {
    /// Its host is there and the receiver is not.
    Gone,
    /// Patience is over.
    OutOfPatience,
}

/// Makes the control connection again.
pub(crate) async fn control(
    dialer: &Dialer,
    addresses: &[SocketAddr],
    patience: Duration,
) -> Result<Lane, GaveUp> {
    let deadline = Instant::now() + patience;
    let (mut refused, mut backoff) = (None, Backoff::new());
    loop {
        match timeout_at(deadline, dialer.control(addresses)).await {
            Ok(Ok(lane)) => return Ok(lane),
            Ok(Err(Error::Refused { .. } | Error::NotAdmitted { .. } | Error::WrongKey { .. })) => {
                if refused.get_or_insert_with(Instant::now).elapsed() >= REFUSED {
                    return Err(GaveUp::Gone);
                }
            }
            Ok(Err(_)) => refused = None,
            Err(_) => return Err(GaveUp::OutOfPatience),
        }
        // A host that answers is asked often enough to be sure soon.
        let most = if refused.is_some() { REFUSED / 8 } else { PAUSE_MAX };
        sleep_until(deadline.min(Instant::now() + backoff.next().min(most))).await;
        if Instant::now() >= deadline {
            return Err(GaveUp::OutOfPatience);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut backoff = Backoff::new();
        let millis: Vec<u128> = (0..7).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 2000, 2000]);
    }
}
