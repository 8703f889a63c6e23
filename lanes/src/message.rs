//! Control messages over a byte stream.

use std::pin::pin;
use std::time::Duration;

use proto::control::{self, HEAD_LEN, Message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::Error;

/// So many beats fit into the time after which the other side gives up.
pub const BEATS: u32 = 4;

/// Sends one message and flushes.
///
/// # Errors
/// [`Error::Message`] when it is over its limit, [`Error::Io`] when the connection breaks.
pub async fn send<M: Message>(to: &mut (impl AsyncWrite + Unpin), message: &M) -> Result<(), Error> {
    to.write_all(&control::encode(message)?).await?;
    Ok(to.flush().await?)
}

/// Receives one message. Not cancel-safe: keep the future until it is ready.
///
/// # Errors
/// [`Error::Closed`] at an orderly end, [`Error::Message`] for what is not a message.
pub async fn receive<M: Message>(from: &mut (impl AsyncRead + Unpin)) -> Result<M, Error> {
    let mut head = [0; HEAD_LEN];
    from.read_exact(&mut head).await?;
    let mut payload = vec![0; control::payload_len::<M>(&head)?];
    payload[0] = head[HEAD_LEN - 1];
    from.read_exact(&mut payload[1..]).await?;
    Ok(control::decode(&payload)?)
}

/// Receives one message from a peer that beats: silence for `dead_after` means that it is gone.
///
/// # Errors
/// As [`receive`], and [`Error::Silent`].
pub async fn receive_alive<M: Message>(
    from: &mut (impl AsyncRead + Unpin),
    dead_after: Duration,
) -> Result<M, Error> {
    let mut receiving = pin!(receive(from));
    // In pieces: when it is this process that was stopped, one of them is over at once, and what
    // came in meanwhile is heard in the next.
    for _ in 0..BEATS {
        if let Ok(message) = timeout(dead_after / BEATS, &mut receiving).await {
            return message;
        }
    }
    Err(Error::Silent { seconds: dead_after.as_secs() })
}

/// Receives one message, however long that takes; `silent` is called whenever nothing came for
/// `dead_after`, with what [`receive_alive`] would have said.
///
/// # Errors
/// As [`receive`].
pub async fn receive_after_silence<M: Message>(
    from: &mut (impl AsyncRead + Unpin),
    dead_after: Duration,
    mut silent: impl FnMut(Error),
) -> Result<M, Error> {
    let mut receiving = pin!(receive(from));
    loop {
        for _ in 0..BEATS {
            if let Ok(message) = timeout(dead_after / BEATS, &mut receiving).await {
                return message;
            }
        }
        silent(Error::Silent { seconds: dead_after.as_secs() });
    }
}

/// Sends what is queued, and `heartbeat` when there is nothing, until the queue is closed.
///
/// # Errors
/// As [`send`].
pub async fn speak<M: Message>(
    mut to: impl AsyncWrite + Unpin,
    dead_after: Duration,
    mut queue: mpsc::UnboundedReceiver<M>,
    heartbeat: M,
) -> Result<(), Error> {
    let beat = dead_after / BEATS;
    loop {
        match timeout(beat, queue.recv()).await {
            Ok(Some(message)) => send(&mut to, &message).await?,
            Ok(None) => return Ok(()),
            Err(_) => send(&mut to, &heartbeat).await?,
        }
    }
}
