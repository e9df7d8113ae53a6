//! Where claims live: the Store trait, its backends and their conformance suite.
