//! A consumer on RabbitMQ that makes an invoice for each paid order.
//!
//! RabbitMQ delivers at least once: a message whose acknowledgement did not arrive is delivered again, to this consumer or
//! to another. The message's id is the key: its mark and the invoice are one commit, so the acknowledgement may be lost
//! at any moment.
//!
//! | the guard says | the message is |
//! |---|---|
//! | done, or done before | acknowledged |
//! | another delivery is being worked on; the function failed; the store is down | given back, to come again |
//! | the same id with another content; not an event at all | rejected: it goes where people look |

#![forbid(unsafe_code)]

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::StreamExt;
use lapin::{
    Channel,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use retrysafe::{
    FingerprintKeys, SqliteOptions, SqliteStore, SqliteTx,
    consume::{ConsumeError, Consumed, Consumer, Event, Terms},
};
use serde::Deserialize;

/// As long as a message may go on coming: a queue that was down over the weekend, and some more.
const WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
/// Messages that are worked on at once.
const PREFETCH: u16 = 32;
/// Before a message is given back: without it a message that cannot be done would come again thousands of times a second.
const BEFORE_AGAIN: Duration = Duration::from_millis(100);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS invoice (id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, amount INTEGER NOT NULL) STRICT;
";

/// The content of a message.
#[derive(Deserialize)]
struct Paid {
    order: String,
}

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is done.
    Acknowledge,
    /// It is to come again.
    Again,
    /// It can never be done: to the dead letters.
    DeadLetter,
}

/// The consumer on the file `invoices.db` in `folder`. Several processes may open it.
///
/// # Errors
/// The file cannot be opened.
pub async fn consumer(folder: &Path, keys: FingerprintKeys) -> Result<Consumer<SqliteStore>> {
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.join("invoices.db")))?);
    store.define(TABLES).await?;
    Ok(Consumer::new(store, Terms::new("invoices", WINDOW)?, keys))
}

/// Declares the queue `name`, with a queue of dead letters beside it.
///
/// # Errors
/// As the broker says.
pub async fn declare(channel: &Channel, name: &str) -> Result<(), lapin::Error> {
    let dead = dead_letters(name);
    channel
        .queue_declare(dead.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default())
        .await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
    arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(dead.into()));
    channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments).await?;
    Ok(())
}

/// The queue of dead letters of the queue `name`.
pub fn dead_letters(name: &str) -> String {
    format!("{name}.dead")
}

/// Consumes `queue` until the channel closes.
///
/// # Errors
/// As the broker says.
pub async fn run(channel: Channel, queue: &str, consumer: Consumer<SqliteStore>) -> Result<(), lapin::Error> {
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let messages = channel
        .basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    let handle = |delivery: Result<Delivery, lapin::Error>| async {
        let delivery = delivery?;
        let verdict = invoice(&consumer, &delivery).await;
        settle(&delivery, verdict).await
    };
    let mut handled = messages.map(handle).buffer_unordered(usize::from(PREFETCH));
    while let Some(result) = handled.next().await {
        result?;
    }
    Ok(())
}

/// Makes the invoice of one message, unless it was made before.
pub async fn invoice(consumer: &Consumer<SqliteStore>, delivery: &Delivery) -> Verdict {
    let id = delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
    let source = delivery.properties.app_id().as_ref().map(|id| id.as_str().to_owned());
    // Without an id two deliveries of one event cannot be told from two events. It is never made from the content: two
    // orders of the same thing are two.
    let (Some(id), Some(source)) = (id, source) else { return Verdict::DeadLetter };
    let Ok(paid) = serde_json::from_slice::<Paid>(&delivery.data) else { return Verdict::DeadLetter };
    let event = Event { source: &source, id: &id, payload: &delivery.data };
    match consumer.guard_sync(&event, move |tx| write(tx, &paid)).await {
        Ok(Consumed::Done(_) | Consumed::Replayed(_) | Consumed::NotKept) => Verdict::Acknowledge,
        Ok(Consumed::InFlight) => Verdict::Again,
        Ok(Consumed::Mismatch | Consumed::OutcomeUnknown) | Err(ConsumeError::Bad(_)) => Verdict::DeadLetter,
        Err(error) => {
            tracing::warn!(%error, "a message was not done, and comes again");
            Verdict::Again
        }
    }
}

/// On the store's writer thread, in the transaction that holds the event.
fn write(tx: &SqliteTx<'_>, paid: &Paid) -> Result<retrysafe::consume::Bytes, retrysafe::BoxError> {
    // The message may be here before the order is: that is an error, so it comes again.
    let amount: i64 =
        tx.query_row("SELECT amount FROM orders WHERE id = ?1", [&paid.order], |row| row.get(0))?;
    tx.execute("INSERT INTO invoice (order_id, amount) VALUES (?1, ?2)", (&paid.order, amount))?;
    // Before the ledger of effects writes a row of its own.
    let invoice = tx.last_insert_rowid();
    tx.effect("invoice")?;
    Ok(format!("invoice {invoice}").into())
}

/// Tells the broker. If this is lost, the message comes again and is found done.
///
/// # Errors
/// As the broker says.
pub async fn settle(delivery: &Delivery, verdict: Verdict) -> Result<(), lapin::Error> {
    match verdict {
        Verdict::Acknowledge => delivery.ack(BasicAckOptions::default()).await?,
        Verdict::Again => {
            tokio::time::sleep(BEFORE_AGAIN).await;
            delivery.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await?
        }
        Verdict::DeadLetter => delivery.reject(BasicRejectOptions { requeue: false }).await?,
    };
    Ok(())
}
