//! One file per verb.

pub mod drop;
pub mod errand;
pub mod inspect;
pub mod key;
pub mod receive;
pub mod send;
pub mod serve;
pub mod status;
pub mod verify;
