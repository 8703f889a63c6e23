//! The byte stream that a lane is. Every transport is one variant of `Transport`.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::Error;

/// Ciphertext read from the socket at once, bytes. rustls asks for 4 KiB at a time; without this
/// buffer that is a system call each.
const READ_BUFFER: usize = 128 << 10;

pub(crate) type Socket = BufReader<TcpStream>;

pub(crate) fn buffered(socket: TcpStream) -> Socket {
    BufReader::with_capacity(READ_BUFFER, socket)
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tls(Box<TlsStream<Socket>>),
}

/// One joined connection of a session.
#[derive(Debug)]
pub struct Lane {
    transport: Transport,
    peer: SocketAddr,
    local: SocketAddr,
}

impl Lane {
    pub(crate) fn new(transport: Transport, local: SocketAddr, peer: SocketAddr) -> Lane {
        Lane { transport, peer, local }
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

    /// Says that nothing more comes, in an orderly way.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub async fn close(&mut self) -> Result<(), Error> {
        Ok(self.shutdown().await?)
    }

    /// The exporter of the TLS connection underneath.
    pub(crate) fn exporter(&self, label: &[u8]) -> Result<[u8; 32], Error> {
        let out = [0u8; 32];
        let exported = match &self.transport {
            Transport::Tls(tls) => match &**tls {
                TlsStream::Client(c) => c.get_ref().1.export_keying_material(out, label, None),
                TlsStream::Server(s) => s.get_ref().1.export_keying_material(out, label, None),
            },
        };
        exported.map_err(|e| Error::Crypto(e.to_string()))
    }
}

impl AsyncRead for Lane {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Lane {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
