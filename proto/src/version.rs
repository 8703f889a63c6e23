//! The hello that opens every connection, and version negotiation.
//!
//! Its 24 bytes never change, so that any two versions can tell each other what they are:
//! magic `vmferry\n` (8), lowest and highest wire version (`u16` each), role (1), reserved (3),
//! capabilities (`u64`); little endian. Both sides send theirs at once and then speak the highest
//! version that both have.
//!
//! | version | what changed |
//! |---|---|
//! | 1 | first: several images, durable acks, epochs, resume fields, raw-public-key TLS |

use thiserror::Error;

/// First bytes of a hello.
pub const MAGIC: [u8; 8] = *b"vmferry\n";
/// Lowest wire version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// Highest wire version that this build speaks.
pub const VERSION_MAX: u16 = 1;
/// Length of a hello, bytes.
pub const HELLO_LEN: usize = 24;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Asks for a session: over a remote shell's stdin and stdout, or of a service.
    Bootstrap,
    /// A connection that joins a session: control or data.
    Lane,
}

/// The opening message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Lowest version spoken.
    pub min: u16,
    /// Highest version spoken.
    pub max: u16,
    /// What for.
    pub role: Role,
    /// Bits that both sides must set for a feature to be used; version 1 knows none.
    pub capabilities: u64,
}

/// Why a hello does not lead to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HelloError {
    /// Not a vmferry peer.
    #[error("the peer does not speak the vmferry protocol")]
    NotVmferry,
    /// No common version.
    #[error(
        "the peer speaks wire versions {theirs_min} to {theirs_max}, this vmferry {VERSION_MIN} to {VERSION_MAX}: install the same release on both hosts"
    )]
    NoCommonVersion {
        /// Their lowest.
        theirs_min: u16,
        /// Their highest.
        theirs_max: u16,
    },
    /// The connection is for something else.
    #[error("the peer opened this connection for something else")]
    WrongRole,
}

impl Hello {
    /// This build's hello.
    pub fn ours(role: Role) -> Hello {
        Hello { min: VERSION_MIN, max: VERSION_MAX, role, capabilities: 0 }
    }

    /// The wire form.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.min.to_le_bytes());
        out[10..12].copy_from_slice(&self.max.to_le_bytes());
        out[12] = self.role.number();
        out[16..].copy_from_slice(&self.capabilities.to_le_bytes());
        out
    }

    /// Parses a peer's hello and picks the version.
    ///
    /// # Errors
    /// [`HelloError`]
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Result<(u16, Role), HelloError> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, a, b, c, d, role, ..] = *bytes;
        if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC {
            return Err(HelloError::NotVmferry);
        }
        let (theirs_min, theirs_max) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let version = theirs_max.min(VERSION_MAX);
        if version < theirs_min.max(VERSION_MIN) {
            return Err(HelloError::NoCommonVersion { theirs_min, theirs_max });
        }
        let known = [Role::Bootstrap, Role::Lane].into_iter().find(|r| r.number() == role);
        known.map(|role| (version, role)).ok_or(HelloError::WrongRole)
    }

    /// The same, where only one role will do.
    ///
    /// # Errors
    /// [`HelloError`]
    pub fn accept(bytes: &[u8; HELLO_LEN], expect: Role) -> Result<u16, HelloError> {
        match Hello::parse(bytes)? {
            (version, role) if role == expect => Ok(version),
            _ => Err(HelloError::WrongRole),
        }
    }
}

impl Role {
    fn number(self) -> u8 {
        match self {
            Role::Bootstrap => 0,
            Role::Lane => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_build_agrees_and_strangers_do_not() {
        let ours = Hello::ours(Role::Lane).encode();
        assert_eq!(Hello::accept(&ours, Role::Lane), Ok(VERSION_MAX));
        assert_eq!(Hello::accept(&ours, Role::Bootstrap), Err(HelloError::WrongRole));
        assert_eq!(Hello::accept(b"HTTP/1.1 400 Bad Request", Role::Lane), Err(HelloError::NotVmferry));
    }

    #[test]
    fn versions_overlap_or_are_named() {
        let hello = |min, max| Hello { min, max, ..Hello::ours(Role::Lane) }.encode();
        assert_eq!(Hello::accept(&hello(1, 9), Role::Lane), Ok(1));
        let error = HelloError::NoCommonVersion { theirs_min: 2, theirs_max: 9 };
        assert_eq!(Hello::accept(&hello(2, 9), Role::Lane), Err(error));
        assert!(error.to_string().contains("2 to 9"));
        assert!(Hello::accept(&hello(9, 1), Role::Lane).is_err());
    }

    /// Golden: fixed for every version to come.
    #[test]
    fn golden_hello() {
        let want = b"vmferry\n\x01\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(&Hello::ours(Role::Lane).encode(), want);
    }
}
