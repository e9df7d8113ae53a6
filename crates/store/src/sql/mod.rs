//! SQL as a value: what a store asks of a database, apart from who sends it.
//!
//! A store above a relational database builds [`Statement`]s (text and arguments) and reads [`Rows`] (numbers and bytes); a
//! [`Driver`] carries them. So the protocol is written once for each database and runs on every client library, and the
//! handler of a transaction keeps the library it knows.
//!
//! There are three types of values on purpose: everything that needs more is encoded in bytes, where no collation, time
//! zone or locale of the database can touch it (F16).

pub(crate) mod clock;
pub(crate) mod days;
mod driver;
pub(crate) mod due;
pub(crate) mod effects;
pub(crate) mod fault;
pub(crate) mod journal;
pub(crate) mod row;
mod value;

pub use driver::{Connection, Driver, Failure, FailureKind, Ran, ServerCode};
pub use value::{Rows, Statement, Value};
