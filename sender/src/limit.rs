//! `--limit`: one rate for all lanes together.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Unused time that may be made up for. Timers wake up to a millisecond late, and a lane may be
/// held up: without it the rate would stay below the limit; much more would be a burst.
const CREDIT: Duration = Duration::from_millis(50);

/// Lets bytes pass at a rate, whoever comes first.
#[derive(Debug)]
pub(crate) struct Limit {
    bits_per_second: u64,
    /// When everything let through so far has left at the rate.
    free_at: Mutex<Instant>,
}

impl Limit {
    pub(crate) fn new(bits_per_second: u64) -> Limit {
        Limit { bits_per_second: bits_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more may be sent.
    pub(crate) async fn pass(&self, bytes: u64) {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let turn = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let turn = (*free_at).max(now.checked_sub(CREDIT).unwrap_or(now));
            *free_at = turn + takes;
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// 10 s of virtual time: the rate of all lanes together is the limit, however many there are,
    /// and however long each of them takes over a chunk.
    #[tokio::test(start_paused = true)]
    async fn lanes_share_the_rate() {
        for (lanes, holds_ms) in [(1, 0), (1, 5), (4, 30), (64, 0)] {
            let limit = Arc::new(Limit::new(800_000_000));
            let started = Instant::now();
            let mut tasks = JoinSet::new();
            for _ in 0..lanes {
                let limit = limit.clone();
                tasks.spawn(async move {
                    let mut sent = 0;
                    while started.elapsed() < Duration::from_secs(10) {
                        limit.pass(MIB).await;
                        sent += MIB;
                        tokio::time::sleep(Duration::from_millis(holds_ms)).await;
                    }
                    sent
                });
            }
            let mut sent = 0;
            while let Some(done) = tasks.join_next().await {
                sent += done.expect("no lane panics");
            }
            // What each lane still had in hand at the end came on top.
            let most = 1_000_000_000 + (lanes as u64 + 5) * MIB;
            assert!((950_000_000..=most).contains(&sent), "{lanes} lanes: {sent} bytes in 10 s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_saved_up() {
        let limit = Limit::new(8_000_000); // 1 MB/s
        tokio::time::sleep(Duration::from_secs(60)).await;
        let started = Instant::now();
        for _ in 0..10 {
            limit.pass(1_000_000).await;
        }
        assert!(started.elapsed() >= Duration::from_millis(8900), "{:?}", started.elapsed());
    }
}
