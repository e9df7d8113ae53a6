//! Fault injection: a SQLite VFS that counts, delays and drops syncs, and power-cut replay.
