//! One file per verb.

pub mod receive;
pub mod send;
