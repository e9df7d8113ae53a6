//! Small servers that break one promise each.
//!
//! A gate that has never failed proves nothing. Each of these servers is broken in the one way that its name says, and is
//! otherwise sound; the table says which arm has to find it. Some are sound altogether, and must pass; two cannot be judged,
//! and must be called inconclusive.
//!
//! They make orders: `POST /orders {"amount", "note"}` and `POST /refunds`, with `Idempotency-Key` and an account in
//! `Authorization`. `GET /orders?note=` lists effects, around all keys. A body with `"decline": true` fails after its
//! effect. With a provider, the effect is a call to it.
//! Some keep their orders in a database, for the crash gate.
//! Beside them stand operations that are said to be idempotent by their methods, for the verify gate: `/notes` are.

#![forbid(unsafe_code)]

mod behaviour;
mod books;
mod claims;
mod natural;
mod running;
mod service;

pub use behaviour::{Behaviour, Booking, Mutant, TABLE, find};
pub use books::LEASE;
pub use running::{Running, Terms};

/// What a plan for the crash gate says of all of them: all but where they are, and how their effects are counted.
pub const CRASH_PLAN: &str = r#"
[request]
path = "/orders"
headers = { Authorization = "Bearer alice" }
body = '{"amount": 4200, "note": "{{nonce}}"}'
[answers]
in_flight = [409]
mismatch = [422]
not_now = [503]
[[observe]]
kind = "stub"
"#;

/// Besides, where their orders are in a database: they are listed by whoever serves.
pub const LISTED: &str = r#"
[[observe]]
kind = "list"
url = "/orders?note={{nonce}}"
jsonpath = "$[?@.note == '{{nonce}}']"
"#;

/// What a plan for the concurrency gate says of all of them: all but `base`, and what a caller adds.
pub const PLAN: &str = r#"
[request]
path = "/orders"
headers = { Authorization = "Bearer alice" }
body = '{"amount": 4200, "note": "{{nonce}}"}'
[key]
required = true
[second_account]
headers = { Authorization = "Bearer bob" }
[other_operation]
path = "/refunds"
headers = { Authorization = "Bearer alice" }
body = '{"amount": 4200, "note": "{{nonce}}"}'
[failing]
path = "/orders"
headers = { Authorization = "Bearer alice" }
body = '{"amount": 4200, "note": "{{nonce}}", "decline": true}'
[answers]
in_flight = [{ status = 409, contains = "in_flight" }]
mismatch = [422]
[[observe]]
kind = "list"
url = "/orders?note={{nonce}}"
jsonpath = "$[?@.note == '{{nonce}}']"
"#;
