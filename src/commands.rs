//! One file per verb.

pub mod key;
pub mod receive;
pub mod send;
pub mod serve;
