//! Handlers that write through the transaction of their claim: on SQLite for all that SQLite can be brought to, and on a
//! database whose commits end as told for the rest.

mod consumers;
mod ends;
mod ledger;
mod sqlite;
