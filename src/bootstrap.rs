//! The first exchange, over the remote shell's stdin and stdout: keys, secret, port.
//!
//! Both directions open with a magic, so that whatever a login prints is skipped, then a hello in
//! the form that every version knows, then one message.

use std::io::{self, Read, Write};

use proto::control::{self, HEAD_LEN, Message};
use proto::version::{HELLO_LEN, Hello, HelloError, Role};

/// Ends the noise of a login; no shell prints a NUL.
const MAGIC: &[u8] = b"\0vmferry bootstrap\0";
/// Noise that is skipped at most, bytes.
const NOISE_MAX: usize = 64 << 10;

/// Why the exchange failed.
#[derive(Debug)]
pub enum BootstrapError {
    /// The other side ended, or never said a word of ours; what it said instead.
    NoPeer(String),
    /// Versions do not fit.
    Hello(HelloError),
    /// A message that cannot be read.
    Malformed,
}

/// Opens our direction.
pub fn open(to: &mut impl Write) -> io::Result<()> {
    to.write_all(MAGIC)?;
    to.write_all(&Hello::ours(Role::Bootstrap).encode())?;
    to.flush()
}

/// Sends the one message.
pub fn send<M: Message>(to: &mut impl Write, message: &M) -> io::Result<()> {
    let bytes = control::encode(message).map_err(|e| io::Error::other(e.to_string()))?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Skips noise and checks the hello.
pub fn accept(from: &mut impl Read) -> Result<(), BootstrapError> {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(MAGIC) {
        if seen.len() > NOISE_MAX || from.read_exact(&mut byte).is_err() {
            return Err(BootstrapError::NoPeer(last_words(&seen)));
        }
        seen.push(byte[0]);
    }
    let mut hello = [0; HELLO_LEN];
    from.read_exact(&mut hello).map_err(|_| BootstrapError::NoPeer(String::new()))?;
    Hello::accept(&hello, Role::Bootstrap).map(drop).map_err(BootstrapError::Hello)
}

/// Receives the one message.
pub fn receive<M: Message>(from: &mut impl Read) -> Result<M, BootstrapError> {
    let mut head = [0; HEAD_LEN];
    let gone = |_| BootstrapError::NoPeer(String::new());
    from.read_exact(&mut head).map_err(gone)?;
    let len = control::payload_len::<M>(&head).map_err(|_| BootstrapError::Malformed)?;
    let mut payload = vec![0; len];
    payload[0] = head[HEAD_LEN - 1];
    from.read_exact(&mut payload[1..]).map_err(gone)?;
    control::decode(&payload).map_err(|_| BootstrapError::Malformed)
}

/// The last line that a person could read.
pub fn last_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::control::{BootstrapReply, Failure};

    #[test]
    fn login_noise_is_skipped() {
        let mut wire = b"Last login: today\n\0vmferry\nMOTD\r\n".to_vec();
        open(&mut wire).unwrap();
        let reply = BootstrapReply::Fail(Failure::new(3, "no"));
        send(&mut wire, &reply).unwrap();
        let mut from = &wire[..];
        accept(&mut from).unwrap();
        assert_eq!(receive::<BootstrapReply>(&mut from).unwrap(), reply);
    }

    #[test]
    fn a_stranger_is_quoted_and_endless_noise_ends() {
        let said = |bytes: &[u8]| match accept(&mut &*bytes) {
            Err(BootstrapError::NoPeer(words)) => words,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(b"bash: vmferry: command not found\n"), "bash: vmferry: command not found");
        said(&vec![b'x'; NOISE_MAX * 2]);
        assert!(matches!(
            receive::<BootstrapReply>(&mut &[255u8, 255, 255, 255, 0][..]),
            Err(BootstrapError::Malformed)
        ));
    }

    #[test]
    fn another_version_is_named() {
        let mut wire = MAGIC.to_vec();
        wire.extend(Hello { min: 7, max: 9, ..Hello::ours(Role::Bootstrap) }.encode());
        assert!(matches!(
            accept(&mut &wire[..]),
            Err(BootstrapError::Hello(HelloError::NoCommonVersion { .. }))
        ));
    }
}
