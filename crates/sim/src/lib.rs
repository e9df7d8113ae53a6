//! What cannot be waited for: disks that misbehave, everything that can happen to a request ([`model`]),
//! and thousands of things in an order that a seed draws ([`simulation`]).
//!
//! SQLite reaches the disk through a *VFS*. The ones here stand over SQLite's own and are registered under a name that
//! [`SqliteOptions::vfs`](retrysafe_store::sqlite::SqliteOptions::vfs) takes:
//!
//! - [`SyncCounter`] counts syncs, and can make each take a fixed time, as a disk would;
//! - [`FaultyDisk`] refuses writes or syncs, as a full or a dying disk would;
//! - [`PowerCut`] writes down every operation, so that the files can be rebuilt as they would be after a power cut at
//!   any moment. Killing a process proves nothing about durability (protocol 30): the operating system still holds
//!   what was never synced;
//! - [`Tripwire`] ends its process at a chosen operation, which shows what a kill there leaves to others.
//!
//! ```
//! use retrysafe_sim::SyncCounter;
//! use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
//! # let dir = tempfile::tempdir()?;
//!
//! let disk = SyncCounter::register();
//! let options = SqliteOptions { vfs: Some(disk.vfs().to_owned()), ..SqliteOptions::new(dir.path().join("keys.db")) };
//! let store = SqliteStore::open(options)?;
//! assert!(disk.count() > 0, "making a store is durable");
//! # drop(store);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A VFS stays registered until the process ends; SQLite may hold on to it for as long.

// SQLite's interface for a VFS is C: tables of functions over raw pointers. All of it is in `vfs`, behind a safe trait.
#![allow(unsafe_code)]

mod disks;
pub mod model;
mod power;
mod request;
pub mod simulation;
mod tripwire;
mod vfs;

pub use disks::{FaultyDisk, SyncCounter, delayed_vfs};
pub use power::{Cut, Position, PowerCut, Survivors, Trace};
pub use tripwire::Tripwire;
