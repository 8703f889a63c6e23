//! sender
