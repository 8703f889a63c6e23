//! Somebody in between: a relay on host a in front of the receiver on host b, who hears every
//! byte and may change one.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use testbed::net::Link;

/// What one connection carried: to the receiver, and back.
pub type Carried = [Vec<u8>; 2];

#[derive(Clone)]
pub struct Tap {
    carried: Arc<Mutex<Vec<Carried>>>,
    /// Turns over the byte of a connection with this many before it on the way to the receiver.
    spoil_at: Option<u64>,
}

impl Tap {
    /// Listens at `port` of host a, relays to `port` of host b.
    pub fn between(link: &Link, port: u16, spoil_at: Option<u64>) -> Tap {
        let tap = Tap { carried: Arc::default(), spoil_at };
        let [at, to] = [link.a(), link.b()].map(|host| SocketAddr::new(host.address(), port));
        let this = tap.clone();
        link.a()
            .inside(move || {
                let listener = TcpListener::bind(at).unwrap();
                // Threads that start in here stay on the host.
                thread::spawn(move || {
                    for (number, ours) in listener.incoming().flatten().enumerate() {
                        let Ok(theirs) = TcpStream::connect(to) else { continue };
                        this.carried.lock().unwrap().push(Carried::default());
                        this.relay(number, [ours, theirs]);
                    }
                });
            })
            .unwrap();
        tap
    }

    fn relay(&self, number: usize, [ours, theirs]: [TcpStream; 2]) {
        let ends = [ours.try_clone().unwrap(), theirs.try_clone().unwrap()];
        let ways = [(ours, theirs), (ends[1].try_clone().unwrap(), ends[0].try_clone().unwrap())];
        for (way, (mut from, mut to)) in ways.into_iter().enumerate() {
            let this = self.clone();
            thread::spawn(move || {
                let mut piece = vec![0; 64 << 10];
                let mut before = 0;
                while let Ok(len @ 1..) = from.read(&mut piece) {
                    this.carried.lock().unwrap()[number][way].extend_from_slice(&piece[..len]);
                    let hit =
                        this.spoil_at.filter(|at| way == 0 && (before..before + len as u64).contains(at));
                    if let Some(at) = hit {
                        piece[(at - before) as usize] ^= 1;
                    }
                    before += len as u64;
                    if to.write_all(&piece[..len]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }

    /// What was carried until now, per connection.
    pub fn carried(&self) -> Vec<Carried> {
        self.carried.lock().unwrap().clone()
    }
}
