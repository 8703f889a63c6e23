//! A cable with a length: two TUN devices and a relay that holds each packet.
//!
//! The devices keep segmentation offload, so that a TCP stream crosses in
//! packets of up to 64 KiB with one read and one write each; the relay passes
//! them on with their virtio header, untouched. One thread serves each
//! direction.
//!
//! Invariants: packets keep their order, and none leaves before its time. When
//! more than [`HELD_MOST`] bytes wait, the relay reads no more and the sending
//! device queues, then drops, like a router.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::Host;
use crate::error::{Doing, Error, Result};

/// Room for the largest packet with its headers.
const PACKET: usize = 66 * 1024;
/// Bytes that may be under way in one direction, whatever the delay.
const HELD_MOST: usize = 512 << 20;
/// Bytes that may be under way for each second of delay: 4 GB/s.
const HELD_PER_SECOND: f64 = 4e9;
/// Packets read in one go before the ones that are due go out.
const BATCH: usize = 32;

/// Running threads that join two devices; dropping it removes the devices.
#[derive(Debug)]
pub(super) struct Relay {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Makes a device called `device` on both hosts and starts to relay.
    pub(super) fn start(a: &Host, b: &Host, device: &str, delay: Duration) -> Result<Self> {
        let in_a = Arc::new(a.inside(|| open(device))??);
        let in_b = Arc::new(b.inside(|| open(device))??);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).doing(|| "making an eventfd".into())?;
        let mut relay = Self { stop: Arc::new(stop), threads: Vec::new() };
        for (from, to) in [(&in_a, &in_b), (&in_b, &in_a)] {
            let (from, to, stop) = (from.clone(), to.clone(), relay.stop.clone());
            let thread = std::thread::Builder::new()
                .name(format!("relay {device}"))
                .spawn(move || pump(&from, &to, &stop, delay))
                .doing(|| "starting a relay thread".into())?;
            relay.threads.push(thread);
        }
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // An eventfd takes any write of 8 bytes while its count is small.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens a TUN device in the namespace of this thread.
fn open(name: &str) -> Result<SyncDevice> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err(Error::Missing { what: "/dev/net/tun".into(), cure: "run `modprobe tun`".into() });
    }
    let device = DeviceBuilder::new()
        .name(name)
        .offload(true)
        .enable(false)
        .build_sync()
        .doing(|| format!("making the TUN device {name}"))?;
    device.set_nonblocking(true).doing(|| format!("setting up the TUN device {name}"))?;
    Ok(device)
}

/// Moves packets one way until told to stop or the device is gone.
fn pump(from: &SyncDevice, to: &SyncDevice, stop: &OwnedFd, delay: Duration) {
    // The default slack of 50 us would be added to every delay; best effort.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    let mut held = Held::new(delay);
    loop {
        let mut idle = true;
        while let Some(packet) = held.due(Instant::now()) {
            // A packet that the other side cannot take is lost, as on a cable.
            let _ = to.send(packet);
            held.release();
            idle = false;
        }
        for _ in 0..BATCH {
            let Some(room) = held.room() else { break };
            match from.recv(room) {
                Ok(length) => held.keep(length, Instant::now() + delay),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            }
            idle = false;
        }
        if idle && !wait(from, stop, &mut held) {
            return;
        }
    }
}

/// Sleeps until a packet arrives or one is due; false when it is time to end.
fn wait(from: &SyncDevice, stop: &OwnedFd, held: &mut Held) -> bool {
    let timeout = held.next_due().map(|due| {
        let left = due.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    let wanted = match held.room() {
        Some(_) => PollFlags::IN,
        None => PollFlags::empty(),
    };
    let device = from.as_fd();
    let mut events = [PollFd::new(stop, PollFlags::IN), PollFd::new(&device, wanted)];
    match poll(&mut events, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => return false,
    }
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    events[0].revents().is_empty() && !events[1].revents().intersects(gone)
}

/// Packets under way, oldest first, in one ring of bytes.
struct Held {
    bytes: Vec<u8>,
    packets: VecDeque<Packet>,
    /// Where the next packet will be put.
    next: usize,
}

struct Packet {
    due: Instant,
    start: usize,
    length: usize,
}

impl Held {
    fn new(delay: Duration) -> Self {
        let wanted = Duration::as_secs_f64(&delay) * HELD_PER_SECOND;
        // Saturates; the kernel gives pages only to the part that is used.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let size = (wanted as usize).clamp(16 << 20, HELD_MOST);
        Self::with_size(size)
    }

    fn with_size(size: usize) -> Self {
        Self { bytes: vec![0; size], packets: VecDeque::new(), next: 0 }
    }

    /// Space for one more packet of any size, unless full.
    fn room(&mut self) -> Option<&mut [u8]> {
        let size = self.bytes.len();
        self.next = match self.packets.front().map(|packet| packet.start) {
            None => 0,
            Some(oldest) if self.next >= oldest => {
                if size - self.next >= PACKET {
                    self.next
                } else if oldest > PACKET {
                    0
                } else {
                    return None;
                }
            }
            // Strictly more, or a full ring would look like an empty one.
            Some(oldest) if oldest - self.next > PACKET => self.next,
            Some(_) => return None,
        };
        Some(&mut self.bytes[self.next..self.next + PACKET])
    }

    /// Keeps the packet that was put into [`Held::room`].
    fn keep(&mut self, length: usize, due: Instant) {
        let start = self.next;
        self.packets.push_back(Packet { due, start, length });
        self.next += length;
    }

    fn next_due(&self) -> Option<Instant> {
        self.packets.front().map(|packet| packet.due)
    }

    /// The oldest packet, if its time has come.
    fn due(&self, now: Instant) -> Option<&[u8]> {
        let packet = self.packets.front().filter(|packet| packet.due <= now)?;
        Some(&self.bytes[packet.start..packet.start + packet.length])
    }

    /// Forgets the oldest packet.
    fn release(&mut self) {
        self.packets.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_order_and_content_when_it_wraps() {
        let mut held = Held::with_size(4 * PACKET);
        let now = Instant::now();
        let (mut put, mut got) = (0u32, 0u32);
        let length = |number: u32| 5 + (number as usize * 7919) % (PACKET - 5);
        while got < 2000 {
            while let Some(room) = held.room() {
                let length = length(put);
                room[..4].copy_from_slice(&put.to_le_bytes());
                room[length - 1] = 0x5a;
                held.keep(length, now);
                put += 1;
            }
            for _ in 0..1 + put % 3 {
                let Some(packet) = held.due(now) else { break };
                assert_eq!(packet[..4], got.to_le_bytes());
                assert_eq!(packet.len(), length(got));
                assert_eq!(packet.last(), Some(&0x5a));
                held.release();
                got += 1;
            }
        }
    }

    #[test]
    fn no_packet_leaves_before_its_time() {
        let mut held = Held::with_size(2 * PACKET);
        let now = Instant::now();
        assert!(held.room().is_some());
        held.keep(10, now + Duration::from_millis(5));
        assert!(held.due(now + Duration::from_millis(4)).is_none());
        assert!(held.due(now + Duration::from_millis(5)).is_some());
    }
}
