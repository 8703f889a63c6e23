//! One file per verb.

pub mod errand;
pub mod receive;
pub mod send;
