//! The byte stream that a lane is. Every transport is one variant of `Connection`.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::join::Transcript;
use proto::seal::{Seal, TAG_LEN};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::Error;
use crate::identity::Fingerprint;
use crate::pulse::Pulse;

/// Ciphertext read from the socket at once, bytes. rustls asks for 4 KiB at a time; without this
/// buffer that is a system call each.
const READ_BUFFER: usize = 128 << 10;

pub(crate) type Socket = BufReader<TcpStream>;

pub(crate) fn buffered(socket: TcpStream) -> Socket {
    BufReader::with_capacity(READ_BUFFER, socket)
}

#[derive(Debug)]
pub(crate) enum Connection {
    Tls(Box<TlsStream<Socket>>),
    Tcp(TcpStream),
}

/// One joined connection of a session.
#[derive(Debug)]
pub struct Lane {
    connection: Connection,
    /// Protects the frames where the connection does not.
    seal: Option<Seal>,
    pulse: Pulse,
    peer: SocketAddr,
    local: SocketAddr,
}

impl Lane {
    pub(crate) fn new(connection: Connection, local: SocketAddr, peer: SocketAddr) -> Lane {
        Lane { connection, seal: None, pulse: Pulse::Off, peer, local }
    }

    /// From now on frames are tagged, where the connection does not protect them itself.
    pub(crate) fn protect(&mut self, join: &Transcript<'_>) {
        if let Connection::Tcp(_) = self.connection {
            self.seal = Some(Seal::new(join));
        }
    }

    /// What the sender puts behind the header of its next frame.
    pub fn tag(&mut self, header: &[u8]) -> Option<[u8; TAG_LEN]> {
        self.seal.as_mut().map(|seal| seal.tag(header))
    }

    /// Receives the header of the next frame, and makes sure that the session's sender made it,
    /// for this place.
    ///
    /// # Errors
    /// [`Error::Forged`] when it did not; else as [`Lane::receive`].
    pub async fn receive_header(&mut self, header: &mut [u8]) -> Result<(), Error> {
        self.read_exact(header).await?;
        if self.seal.is_some() {
            let mut tag = [0; TAG_LEN];
            self.read_exact(&mut tag).await?;
            if !self.seal.as_mut().is_some_and(|seal| seal.fits(header, &tag)) {
                return Err(Error::Forged { peer: self.peer });
            }
        }
        Ok(())
    }

    /// From now on this end says that it is there, often enough for one that takes a silence of
    /// `dead_after` for death: while it receives, and in [`Lane::meanwhile`].
    pub fn beat(&mut self, dead_after: Duration) {
        self.pulse = Pulse::beats(dead_after);
    }

    /// From now on this end listens whether the other does, while it sends and in
    /// [`Lane::meanwhile`]; nothing else can be received.
    pub fn listen(&mut self, dead_after: Duration) {
        self.pulse = Pulse::listens(dead_after);
    }

    /// Waits for something else.
    ///
    /// # Errors
    /// When the connection breaks or falls silent before.
    pub async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| {
            // First, so that whoever never waits beats even so.
            self.poll_pulse(cx)?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends all parts, in order, and hands them to the kernel.
    ///
    /// # Errors
    /// [`Error::Io`] when the connection breaks; how much was sent is then unknown.
    pub async fn send(&mut self, parts: &mut [IoSlice<'_>]) -> Result<(), Error> {
        let mut left = parts;
        IoSlice::advance_slices(&mut left, 0); // skips empty parts
        while !left.is_empty() {
            let sent = self.write_vectored(left).await?;
            if sent == 0 {
                return Err(Error::Io(io::ErrorKind::WriteZero.into()));
            }
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(self.flush().await?)
    }

    /// Fills `buf` exactly.
    ///
    /// # Errors
    /// [`Error::Closed`] when the peer ends first, [`Error::Io`] when the connection breaks.
    pub async fn receive(&mut self, buf: &mut [u8]) -> Result<(), Error> {
        self.read_exact(buf).await?;
        Ok(())
    }

    /// Fills `buf` from its front with what is there, and waits when nothing is. Returns the bytes,
    /// at least one unless `buf` is empty.
    ///
    /// # Errors
    /// As [`Lane::receive`].
    pub async fn receive_some(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        match self.read(buf).await? {
            0 if !buf.is_empty() => Err(Error::Closed),
            count => Ok(count),
        }
    }

    /// Says that nothing more comes, in an orderly way.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub async fn close(&mut self) -> Result<(), Error> {
        Ok(self.shutdown().await?)
    }

    /// The key that the other end proved to hold; nothing on plain TCP.
    pub fn peer_key(&self) -> Option<Fingerprint> {
        let Connection::Tls(tls) = &self.connection else { return None };
        tls.get_ref().1.peer_certificates()?.first().map(|key| Fingerprint::of(key))
    }

    /// The exporter of the TLS connection underneath; nothing where there is none.
    pub(crate) fn exporter(&self, label: &[u8]) -> Result<Vec<u8>, Error> {
        let out = vec![0u8; 32];
        let exported = match &self.connection {
            Connection::Tls(tls) => match &**tls {
                TlsStream::Client(c) => c.get_ref().1.export_keying_material(out, label, None),
                TlsStream::Server(s) => s.get_ref().1.export_keying_material(out, label, None),
            },
            Connection::Tcp(_) => Ok(Vec::new()),
        };
        exported.map_err(|e| Error::Crypto(e.to_string()))
    }
}

impl Lane {
    /// The pulse goes with whatever this end does.
    fn poll_pulse(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.pulse.poll(&mut self.connection, cx) {
            Poll::Ready(e) => Err(e),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Lane {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.connection).poll_read(cx, buf);
        if read.is_pending() {
            self.poll_pulse(cx)?;
        }
        read
    }
}

impl AsyncWrite for Lane {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, buf);
        if written.is_pending() {
            self.poll_pulse(cx)?;
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, bufs);
        if written.is_pending() {
            self.poll_pulse(cx)?;
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection).poll_flush(cx);
        if flushed.is_pending() {
            self.poll_pulse(cx)?;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Connection::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
            Connection::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Connection::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
            Connection::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Connection::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
            Connection::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Tls(tls) => tls.is_write_vectored(),
            Connection::Tcp(tcp) => tcp.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Connection::Tls(tls) => Pin::new(tls).poll_flush(cx),
            Connection::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Connection::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            Connection::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
        }
    }
}
