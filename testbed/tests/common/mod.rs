//! Connections between the two hosts.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use testbed::net::Link;

/// A TCP connection to `address` of host b: its ends on a and on b.
pub fn connect(link: &Link, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = link
        .b()
        .inside(|| TcpListener::bind(SocketAddr::new(address, 0)))
        .expect("entered b")
        .expect("listens on b");
    let target = listener.local_addr().expect("has an address");
    let near = link.a().inside(|| TcpStream::connect(target)).expect("entered a").expect("connects from a");
    let (far, _) = listener.accept().expect("accepts on b");
    (near, far)
}

/// Sends `data` from one end and returns what the other end got.
pub fn carry(near: &mut TcpStream, far: &mut TcpStream, data: &[u8]) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(|| near.write_all(data).expect("sends"));
        let mut got = vec![0; data.len()];
        far.read_exact(&mut got).expect("receives");
        got
    })
}
