//! Consumes the queue `invoices` of the broker at `AMQP_URL`, with its file in the present folder.

use std::path::Path;

use example_invoices_rabbitmq::{consumer, declare, run};
use lapin::{Connection, ConnectionProperties};
use retrysafe::fingerprint_keys_in;

const QUEUE: &str = "invoices";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let broker =
        std::env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned());
    let keys = fingerprint_keys_in("invoices.db.key", "invoices.db")?;
    let consumer = consumer(Path::new("."), keys).await?;
    let connection = Connection::connect(&broker, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    declare(&channel, QUEUE).await?;
    println!("the queue {QUEUE} is consumed");
    Ok(run(channel, QUEUE, consumer).await?)
}
