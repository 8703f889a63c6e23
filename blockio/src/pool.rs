//! The pool of buffers: one mapping, cut into slots, each slot with one owner.
//!
//! # Goals
//!
//! A fixed byte budget that is taken at the start and never exceeded; waiting in turn when it is
//! used up; buffers that travel between tasks and threads like a `Box<[u8]>`.
//!
//! # Invariants
//!
//! A slot is either in the free list or in exactly one [`Buffer`]; the semaphore has one permit
//! per slot in the list. The mapping lives as long as the pool or any of its buffers.
#![allow(unsafe_code)]

use crate::error::{Error, invalid};
use crate::mapping::{Mapping, Window};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// No slot is larger: the kernel takes registered buffers of at most 1 GiB
/// (`io_uring_register(2)`, IORING_REGISTER_BUFFERS).
pub(crate) const MAX_SLOT: usize = 1 << 30;

/// A fixed set of equal buffers in huge pages. Clones share it.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    mapping: Mapping,
    slots: usize,
    slot_bytes: usize,
    free: Mutex<Vec<usize>>,
    permits: Semaphore,
}

impl Pool {
    /// Maps and touches `slots × slot_bytes` bytes.
    ///
    /// # Errors
    ///
    /// No slots, a slot size that is not a multiple of 4096 or above 1 GiB, or not enough memory.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Pool, Error> {
        let failed = |cause| Error::new("reserve buffers", cause);
        if slots == 0 || slot_bytes == 0 || slot_bytes > MAX_SLOT {
            return Err(failed(invalid(format!(
                "{slots} buffers of {slot_bytes} bytes: need at least one, of 4096 bytes to 1 GiB"
            ))));
        }
        if !slot_bytes.is_multiple_of(crate::BLOCK) {
            return Err(failed(invalid(format!(
                "buffers of {slot_bytes} bytes: not a multiple of {}",
                crate::BLOCK
            ))));
        }
        let bytes = slots
            .checked_mul(slot_bytes)
            .filter(|_| slots <= Semaphore::MAX_PERMITS)
            .ok_or_else(|| failed(std::io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let mapping = Mapping::new(bytes).map_err(failed)?;
        Ok(Pool {
            inner: Arc::new(Inner {
                mapping,
                slots,
                slot_bytes,
                // Popped from the back: slot 0 first, so that few buffers share few pages.
                free: Mutex::new((0..slots).rev().collect()),
                permits: Semaphore::new(slots),
            }),
        })
    }

    /// A free buffer; waits for one, in the order of the calls. Its bytes are what the last owner
    /// left in it.
    pub async fn take(&self) -> Buffer {
        match self.inner.permits.acquire().await {
            Ok(permit) => permit.forget(),
            // The semaphore is never closed.
            Err(_) => unreachable!("the pool's semaphore is open as long as the pool lives"),
        }
        self.pop()
    }

    /// A free buffer, or `None` when all are out or somebody waits in [`Pool::take`].
    pub fn try_take(&self) -> Option<Buffer> {
        self.inner.permits.try_acquire().ok()?.forget();
        Some(self.pop())
    }

    /// The number of buffers, free or not.
    pub fn slots(&self) -> usize {
        self.inner.slots
    }

    /// The size of one buffer in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// How many buffers are free now.
    pub fn free(&self) -> usize {
        self.inner.permits.available_permits()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Takes the slot that a permit, just spent, stands for.
    fn pop(&self) -> Buffer {
        let mut free = self.inner.free();
        let slot = free.pop().unwrap_or_else(|| unreachable!("a permit stands for one slot in the list"));
        let bytes = self.inner.slot_bytes;
        // SAFETY: `slot` < `slots`, so it lies inside the mapping. It just left the free list and
        // comes back only when the `Buffer` is dropped, so there is no other window on it; the
        // `Buffer` holds the `Arc` that keeps the mapping.
        let window = unsafe { Window::new(&self.inner.mapping, slot * bytes, bytes) };
        Buffer { window, home: Some((Arc::clone(&self.inner), slot)) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slots", &self.slots())
            .field("slot_bytes", &self.slot_bytes())
            .field("free", &self.free())
            .finish()
    }
}

impl Inner {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address and bytes of the whole mapping.
    pub(crate) fn whole(&self) -> (*mut u8, usize) {
        (self.mapping.start(), self.mapping.len())
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

/// One slot of a pool, owned: reads and writes like a byte slice and goes back on drop.
///
/// Aligned to 4096 bytes in memory, and to the slot size where that is a power of two.
pub struct Buffer {
    window: Window,
    home: Option<(Arc<Inner>, usize)>,
}

impl Buffer {
    /// What an operation gives back when its buffer is lost to the kernel for good (see
    /// [`crate::Engine::read`]): no bytes, no slot.
    pub(crate) fn lost() -> Buffer {
        Buffer { window: Window::empty(), home: None }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.window.address()
    }

    /// The slot's number, if the buffer is out of `pool`.
    pub(crate) fn slot_in(&self, pool: &Arc<Inner>) -> Option<usize> {
        let (home, slot) = self.home.as_ref()?;
        Arc::ptr_eq(home, pool).then_some(*slot)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.window.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.window.bytes_mut()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("bytes", &self.len())
            .field("slot", &self.home.as_ref().map(|(_, slot)| slot))
            .finish()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((pool, slot)) = self.home.take() {
            pool.free().push(slot);
            pool.permits.add_permits(1);
        }
    }
}
