//! Exit codes; one meaning in every verb. Documented for users in `docs/exit-codes.md`.

/// Done.
pub const DONE: u8 = 0;
/// Failed for good.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// Refused before anything was changed on either host.
pub const REFUSED: u8 = 3;
/// Two images differ, or what arrived is not what was read.
pub const DIFFERS: u8 = 4;
/// Interrupted: run the same command again.
pub const INTERRUPTED: u8 = 6;
