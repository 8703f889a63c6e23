//! blockio
