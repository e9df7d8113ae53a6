//! Servers for tests.
//!
//! Two kinds: a **shared** server, which is found (an environment variable names it, or the usual port answers) or started
//! for the length of the test process, and on which tests only make databases of their own; and a **throwaway** one, which a
//! test starts, breaks and kills. Programs that are missing are installed from Debian with `apt-get`, and a test that cannot
//! have its server fails with what was tried. Nothing is skipped.
//!
//! | module | variable | default |
//! |---|---|---|
//! | [`mariadb`] | `RETRYSAFE_TEST_MARIADB` | `mysql://root@127.0.0.1:3306` |
//! | [`postgres`] | `RETRYSAFE_TEST_POSTGRES` | `postgres://postgres@127.0.0.1:5432` |
//! | [`rabbitmq`] | `RETRYSAFE_TEST_RABBITMQ` | `amqp://guest:guest@127.0.0.1:5672/%2f` |
//! | [`redis`] | `RETRYSAFE_TEST_REDIS` | `redis://127.0.0.1:6379` |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot have its server says so by panicking"
)]

mod certificates;
mod disk;
pub mod mariadb;
pub mod pgbouncer;
pub mod postgres;
pub mod rabbitmq;
pub mod redis;
mod tools;

pub use certificates::Certificates;
pub use disk::SmallDisk;
pub use tools::{address, strace};
