//! The retrysafe command.

fn main() {}
