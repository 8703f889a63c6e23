//! What one peer, and all of them together, may take of this host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lanes::identity::Fingerprint;

/// Callers with one key that have not said yet what they want.
const CALLS: u32 = 64;

/// Most of everything, at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Jobs of all peers.
    pub jobs: u32,
    /// Jobs of one peer.
    pub jobs_per_peer: u32,
    /// Data connections of one peer, all its jobs together.
    pub lanes_per_peer: u32,
    /// Bytes of buffers for the jobs of all peers.
    pub memory: u64,
    /// Bytes of buffers for the jobs of one peer.
    pub memory_per_peer: u64,
}

/// What is taken.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: Limits,
    used: Mutex<HashMap<Fingerprint, Used>>,
    calls: Mutex<HashMap<Fingerprint, u32>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    jobs: u32,
    lanes: u32,
    memory: u64,
}

impl Quota {
    pub(crate) fn new(limits: Limits) -> Arc<Quota> {
        Arc::new(Quota { limits, used: Mutex::default(), calls: Mutex::default() })
    }

    /// One caller more that may say what it wants; `None`: too many with this key are at it.
    pub(crate) fn call(self: &Arc<Self>, peer: Fingerprint) -> Option<Call> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let own = calls.entry(peer).or_default();
        if *own >= CALLS {
            return None;
        }
        *own += 1;
        Some(Call { quota: self.clone(), peer })
    }

    /// One job more.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn job(self: &Arc<Self>, peer: Fingerprint) -> Result<Lease, String> {
        let (limits, mut used) = (&self.limits, self.used.lock().unwrap_or_else(PoisonError::into_inner));
        let all: u32 = used.values().map(|u| u.jobs).sum();
        if all >= limits.jobs {
            let jobs = if all == 1 { "job" } else { "jobs" };
            return Err(format!("busy with {all} {jobs}, which is all it takes at once: try again later"));
        }
        let own = used.entry(peer).or_default();
        if own.jobs >= limits.jobs_per_peer {
            let jobs = own.jobs;
            let are = if jobs == 1 { "job of this key is" } else { "jobs of this key are" };
            return Err(format!("{jobs} {are} running, it may have no more: let one end first"));
        }
        own.jobs += 1;
        Ok(Lease { quota: self.clone(), peer, lanes: 0, memory: 0 })
    }
}

/// One caller; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    quota: Arc<Quota>,
    peer: Fingerprint,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = self.quota.calls.lock().unwrap_or_else(PoisonError::into_inner);
        match calls.get_mut(&self.peer) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(calls.remove(&self.peer)),
        }
    }
}

/// What one job has taken; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    quota: Arc<Quota>,
    peer: Fingerprint,
    lanes: u32,
    memory: u64,
}

impl Lease {
    /// Takes data connections and memory.
    ///
    /// # Errors
    /// A sentence; nothing was taken then.
    pub(crate) fn take(&mut self, lanes: u32, memory: u64) -> Result<(), String> {
        let limits = self.quota.limits;
        let mut used = self.quota.used.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = used.values().map(|u| u.memory).sum();
        let own = used.entry(self.peer).or_default();
        let (have, most) = (own.lanes, limits.lanes_per_peer);
        if have.saturating_add(lanes) > most {
            return Err(format!(
                "{lanes} connections more are too many: this key has {have}, it may have {most} at once: use fewer --streams"
            ));
        }
        if own.memory.saturating_add(memory) > limits.memory_per_peer {
            let (have, most) = (own.memory, limits.memory_per_peer);
            return Err(format!(
                "{memory} bytes of buffers more are too much: this key has {have}, it may have {most}: use fewer --streams or a smaller --chunk or --memory"
            ));
        }
        if all.saturating_add(memory) > limits.memory {
            return Err(format!("{memory} bytes of buffers are not free now: try again later"));
        }
        own.lanes += lanes;
        own.memory += memory;
        self.lanes += lanes;
        self.memory += memory;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut used = self.quota.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = used.get_mut(&self.peer) {
            own.jobs -= 1;
            own.lanes -= self.lanes;
            own.memory -= self.memory;
            if own.jobs == 0 {
                used.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let limits =
            Limits { jobs: 3, jobs_per_peer: 2, lanes_per_peer: 8, memory: 100, memory_per_peer: 60 };
        let quota = Quota::new(limits);
        let peer = |n| Fingerprint([n; 32]);
        let mut first = quota.job(peer(1)).unwrap();
        first.take(6, 50).unwrap();
        let mut second = quota.job(peer(1)).unwrap();
        assert!(quota.job(peer(1)).unwrap_err().contains("let one end first"));
        assert!(second.take(3, 1).unwrap_err().contains("--streams"));
        assert!(second.take(1, 11).unwrap_err().contains("--chunk"));
        second.take(2, 10).unwrap();
        let mut other = quota.job(peer(2)).unwrap();
        assert!(other.take(1, 41).unwrap_err().contains("not free now"));
        assert!(quota.job(peer(3)).unwrap_err().contains("busy with 3 jobs"));
        drop(first);
        other.take(1, 41).unwrap();
        drop((second, other));
        assert!(quota.used.lock().unwrap().is_empty());
        let mut calls: Vec<_> = (0..CALLS).map(|_| quota.call(peer(1)).unwrap()).collect();
        assert!(quota.call(peer(1)).is_none() && quota.call(peer(2)).is_some());
        calls.pop();
        assert!(quota.call(peer(1)).is_some());
        drop(calls);
        assert!(quota.calls.lock().unwrap().is_empty());
    }
}
