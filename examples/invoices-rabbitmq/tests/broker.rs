//! Deliveries on a real broker: at once, again, given back, and with the acknowledgement lost after the commit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use example_invoices_rabbitmq::{Verdict, consumer, dead_letters, declare, invoice, run, settle};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::{BasicGetMessage, Delivery},
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions},
};
use retrysafe::{DeploymentKey, FingerprintKeys, SqliteStore, consume::Consumer};

/// How long a broker may take to deliver.
const PATIENCE: Duration = Duration::from_secs(20);

struct Queue {
    name: String,
    channel: Channel,
    connection: Connection,
}

async fn connect() -> Connection {
    let broker = tokio::task::spawn_blocking(retrysafe_testbed::rabbitmq::shared).await.unwrap();
    Connection::connect(broker, ConnectionProperties::default()).await.unwrap()
}

impl Queue {
    /// A queue of this test's own.
    async fn new() -> Self {
        let mut random = [0; 8];
        getrandom::fill(&mut random).unwrap();
        let name = format!("retrysafe-test-{:016x}", u64::from_le_bytes(random));
        let connection = connect().await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        declare(&channel, &name).await.unwrap();
        Self { name, channel, connection }
    }

    async fn publish(&self, id: Option<&str>, body: &str) {
        let mut properties = BasicProperties::default().with_app_id("billing".into()).with_delivery_mode(2);
        if let Some(id) = id {
            properties = properties.with_message_id(id.into());
        }
        let options = BasicPublishOptions::default();
        let published = self.channel.basic_publish(
            "".into(),
            self.name.as_str().into(),
            options,
            body.as_bytes(),
            properties,
        );
        published.await.unwrap().await.unwrap();
    }

    /// The next message of `queue`, on `channel`.
    async fn next(channel: &Channel, queue: &str) -> Delivery {
        let got = tokio::time::timeout(PATIENCE, async {
            loop {
                let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap();
                if let Some(BasicGetMessage { delivery, .. }) = got {
                    return delivery;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        got.await.unwrap_or_else(|_| panic!("nothing came on {queue}"))
    }

    async fn get(&self) -> Delivery {
        Self::next(&self.channel, &self.name).await
    }

    async fn is_empty(&self) -> bool {
        self.channel.basic_get(self.name.as_str().into(), BasicGetOptions::default()).await.unwrap().is_none()
    }

    async fn delete(self) {
        for name in [self.name.clone(), dead_letters(&self.name)] {
            self.channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        self.connection.close(200, "done".into()).await.unwrap();
    }
}

/// A process of its own on one file: another store, and other readers.
async fn process(folder: &tempfile::TempDir) -> Consumer<SqliteStore> {
    let keys = FingerprintKeys::new(DeploymentKey::new(1, &[7; 32]).unwrap());
    consumer(folder.path(), keys).await.unwrap()
}

async fn order(consumer: &Consumer<SqliteStore>, id: &'static str) {
    let insert =
        move |tables: &retrysafe::SqliteConnection| tables.execute("INSERT INTO orders VALUES (?1, 5)", [id]);
    consumer.database().run(insert).await.unwrap();
}

async fn invoices(consumer: &Consumer<SqliteStore>) -> i64 {
    let count = |tables: &retrysafe::SqliteConnection| {
        tables.query_row("SELECT count(*) FROM invoice", [], |row| row.get(0))
    };
    consumer.database().run(count).await.unwrap()
}

const PAID: &str = r#"{"order": "o-1"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn o7_two_deliveries_at_once_in_two_processes_make_one_invoice() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (process(&folder).await, process(&folder).await);
    order(&one, "o-1").await;
    let queue = Queue::new().await;
    for round in 1..=20 {
        let id = format!("evt_{round}");
        queue.publish(Some(&id), PAID).await;
        queue.publish(Some(&id), PAID).await;
        let (first, second) = (queue.get().await, queue.get().await);
        let verdicts = tokio::join!(invoice(&one, &first), invoice(&other, &second));
        assert_eq!(verdicts, (Verdict::Acknowledge, Verdict::Acknowledge));
        settle(&first, verdicts.0).await.unwrap();
        settle(&second, verdicts.1).await.unwrap();
        assert_eq!(invoices(&one).await, round);
    }
    assert!(queue.is_empty().await);
    queue.delete().await;
}

/// D4: the acknowledgement is lost after the commit, with the process that would have sent it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_an_acknowledgement_lost_after_the_commit_makes_no_second_invoice() {
    let folder = tempfile::tempdir().unwrap();
    let dies = process(&folder).await;
    order(&dies, "o-1").await;
    let queue = Queue::new().await;
    queue.publish(Some("evt_1"), PAID).await;
    {
        let connection = connect().await;
        let channel = connection.create_channel().await.unwrap();
        let delivery = Queue::next(&channel, &queue.name).await;
        assert!(!delivery.redelivered);
        assert_eq!(invoice(&dies, &delivery).await, Verdict::Acknowledge);
        // Committed, and not acknowledged.
        connection.close(200, "the process died".into()).await.unwrap();
    }
    drop(dies);
    let next = process(&folder).await;
    let again = queue.get().await;
    assert!(again.redelivered);
    let verdict = invoice(&next, &again).await;
    assert_eq!(verdict, Verdict::Acknowledge);
    settle(&again, verdict).await.unwrap();
    assert_eq!(invoices(&next).await, 1);
    assert!(queue.is_empty().await);
    queue.delete().await;
}

/// O6: an event whose function fails is given back, and not marked as done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o6_a_message_that_fails_comes_again_until_it_can_be_done() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = process(&folder).await;
    let queue = Queue::new().await;
    queue.publish(Some("evt_1"), PAID).await;
    for _ in 0..2 {
        let early = queue.get().await;
        let verdict = invoice(&consumer, &early).await;
        assert_eq!(verdict, Verdict::Again, "the order is not there yet");
        settle(&early, verdict).await.unwrap();
    }
    order(&consumer, "o-1").await;
    // The whole program this time.
    let running = tokio::spawn({
        let (channel, name) = (queue.connection.create_channel().await.unwrap(), queue.name.clone());
        let consumer = consumer.clone();
        async move { run(channel, &name, consumer).await }
    });
    let made = tokio::time::timeout(PATIENCE, async {
        while invoices(&consumer).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    made.await.unwrap();
    running.abort();
    assert_eq!(invoices(&consumer).await, 1);
    queue.delete().await;
}

/// O8, and messages that are no events: never run, never lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o8_another_content_under_one_id_and_a_message_without_one_go_to_the_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = process(&folder).await;
    order(&consumer, "o-1").await;
    order(&consumer, "o-2").await;
    let queue = Queue::new().await;
    for (id, body, expected) in [
        (Some("evt_1"), PAID, Verdict::Acknowledge),
        (Some("evt_1"), r#"{"order": "o-2"}"#, Verdict::DeadLetter),
        (None, PAID, Verdict::DeadLetter),
        (Some("evt_2"), "not an event", Verdict::DeadLetter),
    ] {
        queue.publish(id, body).await;
        let delivery = queue.get().await;
        let verdict = invoice(&consumer, &delivery).await;
        assert_eq!(verdict, expected, "{id:?} {body}");
        settle(&delivery, verdict).await.unwrap();
        if expected == Verdict::DeadLetter {
            let dead = Queue::next(&queue.channel, &dead_letters(&queue.name)).await;
            assert_eq!(dead.data, body.as_bytes());
            settle(&dead, Verdict::Acknowledge).await.unwrap();
        }
    }
    assert_eq!(invoices(&consumer).await, 1);
    queue.delete().await;
}
