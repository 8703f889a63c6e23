//! What can go wrong while hosts, disks and images are made.

use std::io;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a part of the test bed could not be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program, a right or a kernel feature is not there.
    #[error("{what} is missing: {cure}")]
    Missing {
        /// The thing that is needed.
        what: String,
        /// The command that installs or enables it.
        cure: String,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said, trimmed.
        stderr: String,
    },
    /// A system call failed.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { doing: doing.into(), source: source.into() }
    }
}

/// Adds what was being done to an error of the system.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::io(what(), source))
    }
}
