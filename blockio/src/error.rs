//! The one error type of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An operation on an image, a pool or an engine that failed.
///
/// Displays as one sentence with its cause in it:
/// `cannot read /x/y.img at byte 1048576: Input/output error (os error 5)`. As the cause is part
/// of the sentence, `source()` goes on with what lies below the [`io::Error`]; the `io::Error`
/// itself is [`Error::io`].
#[derive(Clone, Debug)]
pub struct Error {
    op: &'static str,
    path: Option<PathBuf>,
    offset: Option<u64>,
    source: Arc<io::Error>,
}

impl Error {
    pub(crate) fn new(op: &'static str, source: impl Into<io::Error>) -> Error {
        Error { op, path: None, offset: None, source: Arc::new(source.into()) }
    }

    pub(crate) fn on(op: &'static str, path: &Path, source: impl Into<io::Error>) -> Error {
        Error { path: Some(path.to_owned()), ..Error::new(op, source) }
    }

    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.offset = Some(offset);
        self
    }

    /// What was tried, as a verb: `read`, `write`, `sync`, `open`, ….
    pub fn operation(&self) -> &'static str {
        self.op
    }

    /// The image it was tried on.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The byte offset in the image.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// The kind of the cause; [`io::ErrorKind::StorageFull`] for ENOSPC.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// The `errno(3)` of the cause, when it came from the kernel.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// The cause.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.op)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.source)
    }
}

/// A cause that is ours and not the kernel's.
pub(crate) fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentence_with_its_cause_once() {
        let error = Error::on("read", Path::new("/x/y.img"), io::Error::from_raw_os_error(5)).at(1_048_576);
        assert_eq!(
            error.to_string(),
            "cannot read /x/y.img at byte 1048576: Input/output error (os error 5)"
        );
        assert!(std::error::Error::source(&error).is_none());
        assert_eq!(error.raw_os_error(), Some(5));
        assert_eq!(error.clone().io().raw_os_error(), Some(5));
    }

    #[test]
    fn no_path_no_offset() {
        let error = Error::new("start io_uring", io::Error::from_raw_os_error(1));
        assert_eq!(error.to_string(), "cannot start io_uring: Operation not permitted (os error 1)");
    }
}
