//! A checkout: orders are placed under the key of their cart, and survive lost answers and restarts.

#![forbid(unsafe_code)]

use std::path::Path;

use retrysafe::client::{Answer, Api, Client, Error, intents::SqliteIntents};

/// A client of the order service. `database` is the application's own: the intents are a table in it.
///
/// # Errors
/// The contract or the database cannot be opened.
pub fn client(base: &str, database: &Path) -> anyhow::Result<Client> {
    let api = Api::contract_file(concat!(env!("CARGO_MANIFEST_DIR"), "/retrysafe.toml"))?;
    let intents = SqliteIntents::open(database)?;
    Ok(Client::builder(api, base).intents(intents).build()?)
}

/// Places the order of a cart. Whoever calls it again for the same cart, in whatever process, gets the same order.
///
/// # Errors
/// What the call came to, if not to an answer. `OutcomeUnknown` is taken up by [`take_up`].
pub async fn place(client: &Client, cart: &str, amount: u32) -> anyhow::Result<Answer> {
    let order =
        client.post("/orders").event("order", cart)?.json(&serde_json::json!({ "amount": amount }))?;
    match order.durable().send().await {
        Err(Error::OutcomeUnknown(unknown)) => {
            anyhow::bail!("it may have been ordered ({unknown}); it is settled at the next start")
        }
        sent => Ok(sent?),
    }
}

/// At start: settles what an earlier life left open. Returns how many orders have an answer now, and how many do not.
///
/// # Errors
/// The intents cannot be read.
pub async fn take_up(client: &Client) -> anyhow::Result<(usize, usize)> {
    let resumed = client.resume().await?;
    Ok((resumed.answered.len(), resumed.open.len()))
}
