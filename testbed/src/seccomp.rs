//! A process that may not use io_uring, as in containers and on hardened hosts.
//!
//! Non-goal: security. The filter only answers one system call with an error.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::error::{Error, Result};

/// The io_uring call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `io_uring_setup`: there is no ring at all.
    Setup,
    /// `io_uring_register`: there are rings, but no registered buffers or files.
    Register,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// "Operation not permitted": a policy forbids it.
    Eperm,
    /// "Function not implemented": the kernel lacks it.
    Enosys,
}

/// Makes `call` fail from now on, in this thread and all that it starts or
/// becomes by `exec`. It cannot be undone.
///
/// # Errors
/// When the kernel has no seccomp filters, or this processor is not known.
pub fn deny_io_uring(call: Call, refusal: Refusal) -> Result<()> {
    let number = match call {
        Call::Setup => libc::SYS_io_uring_setup,
        Call::Register => libc::SYS_io_uring_register,
    };
    let errno = match refusal {
        Refusal::Eperm => libc::EPERM,
        Refusal::Enosys => libc::ENOSYS,
    };
    let program = compile(number, errno.unsigned_abs())
        .map_err(|error| Error::Invalid(format!("no filter for this processor: {error}")))?;
    seccompiler::apply_filter(&program).map_err(|error| Error::Missing {
        what: format!("seccomp in the kernel ({error})"),
        cure: "use a kernel with CONFIG_SECCOMP_FILTER".into(),
    })
}

fn compile(number: i64, errno: u32) -> Result<BpfProgram, seccompiler::BackendError> {
    let any_arguments = Vec::new();
    SeccompFilter::new(
        BTreeMap::from([(number, any_arguments)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}
