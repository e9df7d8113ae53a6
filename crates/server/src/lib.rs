//! The server half: a tower layer that runs a keyed write once and replays its answer.
