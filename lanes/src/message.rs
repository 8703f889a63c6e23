//! Control messages over a byte stream.

use proto::control::{self, HEAD_LEN, Message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Error;

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
