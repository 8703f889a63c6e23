//! vmferry
fn main() {}
