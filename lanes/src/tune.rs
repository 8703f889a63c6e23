//! Socket options and source ports of lanes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

/// First source port that lanes pick: the start of Linux's default ephemeral range
/// (ip_local_port_range, ip(7)).
const PORT_FIRST: u16 = 32768;
/// Where the random start of a job's ports may lie at most, so that 256 lanes fit behind it.
const PORT_LAST_BASE: u16 = 60000;

/// How a lane's socket behaves.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Bytes that may wait unsent in the kernel (TCP_NOTSENT_LOWAT, tcp(7)); 0 leaves the default.
    /// Default: one chunk. Less and a lane idles between two chunks, more and a slow path holds
    /// work that a fast one could do.
    pub unsent: u32,
    /// A peer that acknowledges nothing for so long is dead (TCP_USER_TIMEOUT and keepalive).
    pub dead_after: Duration,
}

/// Leaves it to the other end, and to the control connection, to notice that this one is dead.
/// TCP_USER_TIMEOUT also ends a connection whose peer lives and takes nothing for so long
/// (tcp_probe_timer in Linux), and a receiver takes nothing while its disk is in a long flush.
///
/// # Errors
/// What setsockopt(2) says.
pub fn wait_for_a_busy_peer(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(None)
}

/// Applies `tuning` to a connected socket. Options that the system does not know are left alone.
///
/// # Errors
/// When TCP_NODELAY or the timeouts cannot be set: a half-open connection would hang for hours.
pub fn apply(socket: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    let sock = SockRef::from(socket);
    sock.set_tcp_nodelay(true)?;
    sock.set_tcp_user_timeout(Some(tuning.dead_after))?;
    let third = (tuning.dead_after / 3).max(Duration::from_secs(1));
    let probes = TcpKeepalive::new().with_time(third).with_interval(third).with_retries(3);
    sock.set_tcp_keepalive(&probes)?;
    if tuning.unsent > 0 {
        // Only spreads work better; a kernel without it still moves the data.
        let _ = sock.set_tcp_notsent_lowat(tuning.unsent);
    }
    Ok(())
}

/// Source ports of one job: neighbours, so that lanes alternate in parity and differ in the low
/// bits that bonds (layer3+4 hash), receive queues and flow shapers look at.
#[derive(Clone, Copy, Debug)]
pub struct SourcePorts {
    base: u16,
}

impl SourcePorts {
    /// Ports behind a random start.
    pub fn starting_at(random: u16) -> SourcePorts {
        SourcePorts { base: PORT_FIRST + random % (PORT_LAST_BASE - PORT_FIRST) }
    }

    /// A socket for lane `index` towards `peer`, bound to that lane's port, or the next free one
    /// of the same parity, or any.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn bind(&self, index: u32, peer: IpAddr) -> io::Result<TcpSocket> {
        let wanted = |n: u32| self.base.checked_add(u16::try_from(index + 2 * n).ok()?);
        for port in (0..32).filter_map(|n| wanted(n * 8)) {
            let socket = fresh(peer)?;
            match socket.bind(SocketAddr::new(unspecified(peer), port)) {
                Ok(()) => return Ok(socket),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
        fresh(peer)
    }
}

fn fresh(peer: IpAddr) -> io::Result<TcpSocket> {
    if peer.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() }
}

/// A listening socket for both address families on `port` (0: any), or IPv4 alone where the
/// system has no IPv6.
///
/// # Errors
/// When the port is taken or not permitted.
pub fn listen(port: u16) -> io::Result<std::net::TcpListener> {
    match listen_at(SocketAddr::new([0u16; 8].into(), port)) {
        Err(e) if e.kind() != io::ErrorKind::AddrInUse && e.kind() != io::ErrorKind::PermissionDenied => {
            listen_at(SocketAddr::new([0, 0, 0, 0].into(), port))
        }
        other => other,
    }
}

/// A listening socket on one address; `::` takes IPv4 as well.
///
/// # Errors
/// When the address is taken, not permitted or not this host's.
pub fn listen_at(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A port of our own that is still in TIME_WAIT after the last job may be used again.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(512)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lanes_get_neighbouring_ports_of_both_parities() {
        let ports = SourcePorts::starting_at(777);
        let peer: IpAddr = [127, 0, 0, 1].into();
        let sockets: Vec<_> = (0..8).map(|i| ports.bind(i, peer).unwrap()).collect();
        let odd = sockets.iter().filter(|s| s.local_addr().unwrap().port() % 2 == 1).count();
        assert_eq!(odd, 4);
    }

    #[tokio::test]
    async fn a_taken_port_is_passed_over() {
        let ports = SourcePorts::starting_at(4321);
        let peer: IpAddr = [127, 0, 0, 1].into();
        let (a, b) = (ports.bind(3, peer).unwrap(), ports.bind(3, peer).unwrap());
        let (a, b) = (a.local_addr().unwrap().port(), b.local_addr().unwrap().port());
        assert_ne!(a, b);
        assert_eq!(a % 2, b % 2, "the parity stays");
    }

    #[tokio::test]
    async fn options_are_really_set() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let tuning = Tuning { unsent: 1 << 20, dead_after: Duration::from_secs(9) };
        apply(&socket, &tuning).unwrap();
        let sock = SockRef::from(&socket);
        assert!(sock.tcp_nodelay().unwrap());
        assert_eq!(sock.tcp_notsent_lowat().unwrap(), 1 << 20);
        assert_eq!(sock.tcp_user_timeout().unwrap(), Some(Duration::from_secs(9)));
    }
}
