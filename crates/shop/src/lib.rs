//! The bundled sample API: orders, payments and a ledger of what really happened.
//!
//! The shop is the upstream of the tutorial, the demos and the proofs: an API like any other, written without a
//! thought for retries. Two identical POSTs make two orders. It only *notes* the `Idempotency-Key` it was sent,
//! so that [`GET /ledger`](#routes) can show, from outside the claim path, how often an effect really happened.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use retrysafe_shop::{Shop, ShopOptions, serve};
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! let shop = Shop::open("retrysafe-shop.db")?;
//! serve(listener, shop, ShopOptions::default(), std::future::pending()).await?;
//! # Ok(()) }
//! ```
//!
//! # Routes
//!
//! | route | answer |
//! |---|---|
//! | `POST /orders`, `POST /payments` `{amount, ...}` | 201 and `Location`; `amount <= 0` -> 422, nothing happens |
//! | `GET` on the same, and on `/{id}` | the caller's own |
//! | `DELETE /orders/{id}` | 204; the ledger keeps both entries |
//! | `POST`, `GET /v1/charges`, `/v1/payment_intents` | Stripe-shaped JSON, form bodies accepted |
//! | `GET /ledger?account=&key=&after=&limit=` | every effect that happened, oldest first, a bounded page |
//! | `GET /operations/{key}?fence=N` | what became of that key; asking fences it (protocol 22) |
//! | `GET`, `POST`, `DELETE /faults` | the queue of faults, only with [`ShopOptions::faults`] |
//!
//! Any bearer token is an account; none is a 401. Effects survive `kill -9` (they are in the file's log when the
//! answer leaves) but not a power cut: the file is written without fsync, because durability is the store's
//! subject, not the sample's.

#![forbid(unsafe_code)]

mod book;
mod faults;
mod form;
mod http;
mod problem;
mod serve;
mod stripe;

use std::path::Path;
use std::time::Duration;

pub use book::ShopError;
pub use serve::serve;

/// The sample's data: one SQLite file of effects. Cheap to clone; clones share the file.
#[derive(Clone, Debug)]
pub struct Shop {
    pub(crate) book: book::Book,
}

impl Shop {
    /// Opens, or makes, the file of effects at `path`.
    ///
    /// # Errors
    /// The file cannot be opened or is not a shop's.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ShopError> {
        Ok(Self { book: book::Book::open(path.as_ref())? })
    }
}

/// How the sample misbehaves. The default is a plain, honest API without any de-duplication.
#[derive(Clone, Debug, Default)]
pub struct ShopOptions {
    /// Obey `X-Shop-Fault` headers and the `/faults` queue. Never on by accident: a sample that strangers can
    /// tell to cut connections teaches the wrong lesson.
    pub faults: bool,
    /// How long a state-changing handler works before its effect.
    pub handler: Duration,
    /// De-duplicate by `Idempotency-Key` in the effect's own transaction, as an upstream that a contract may
    /// declare `upstream_deduplicates` does.
    pub deduplicate: bool,
}
