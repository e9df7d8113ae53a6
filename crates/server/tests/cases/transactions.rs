//! Handlers that write through the transaction of their claim: on SQLite, PostgreSQL and MariaDB for all that these can be
//! brought to, and on a database whose commits end as told for the rest.

mod consumers;
mod databases;
mod ends;
mod ledger;
mod sqlite;
