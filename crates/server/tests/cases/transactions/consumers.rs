//! Functions that are called at least once (SPEC 11.3): the event's id is the key, and its mark is made with its rows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use retrysafe_core::contract::Contract;
use retrysafe_server::{
    BoxError, Reply, Retrysafe,
    consume::{ConsumeError, Consumed, Consumer, Event, Terms},
    recovery::{
        Asked, CallFault, External, Found, Halt, Phase, Plan, Recovery, RecoveryFault, Request, Shape, Steps,
    },
};
use retrysafe_store::{
    Filter, Store,
    journal::Journal,
    sqlite::{SqliteOptions, SqliteStore},
    transactional::Undone,
};

use crate::support::{
    api::deployment_keys,
    faulty::Gate,
    rows::{Planned, Rows},
};

const WINDOW: Duration = Duration::from_secs(3600);

fn event<'a>(id: &'a str, payload: &'a str) -> Event<'a> {
    Event { source: "billing", id, payload: payload.as_bytes() }
}

async fn sqlite() -> (Consumer<SqliteStore>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("i.db"))).unwrap());
    store.define("CREATE TABLE invoice (id INTEGER PRIMARY KEY, of TEXT) STRICT").await.unwrap();
    (Consumer::new(store, Terms::new("invoices", WINDOW).unwrap(), deployment_keys()), folder)
}

async fn invoices(consumer: &Consumer<SqliteStore>) -> i64 {
    let count = |tables: &rusqlite::Connection| {
        tables.query_row("SELECT count(*) FROM invoice", [], |row| row.get(0))
    };
    consumer.database().run(count).await.unwrap()
}

async fn invoice(consumer: &Consumer<SqliteStore>, event: Event<'_>) -> Result<Consumed, ConsumeError> {
    let of = event.id.to_owned();
    consumer
        .guard_sync(&event, move |tx| {
            tx.execute("INSERT INTO invoice (of) VALUES (?1)", [of])?;
            Ok::<_, BoxError>(Bytes::from(format!("invoice {}", tx.last_insert_rowid())))
        })
        .await
}

/// SPEC 11.3: two deliveries of one event at once make one invoice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn o7_deliveries_at_once_make_one_invoice_and_all_get_its_result() {
    let (consumer, _folder) = sqlite().await;
    for round in 1..=20 {
        let id = format!("evt_{round}");
        let told = join_all((0..50).map(|_| invoice(&consumer, event(&id, "{}")))).await;
        let told: Vec<_> = told.into_iter().map(Result::unwrap).collect();
        let result = Bytes::from(format!("invoice {round}"));
        assert_eq!(told.iter().filter(|one| **one == Consumed::Done(result.clone())).count(), 1);
        assert_eq!(told.iter().filter(|one| **one == Consumed::Replayed(result.clone())).count(), 49);
        assert_eq!(invoices(&consumer).await, round);
    }
}

/// O6: what fails is not marked as done, so its event is not lost.
#[tokio::test]
async fn o6_a_function_that_fails_or_panics_leaves_no_mark_and_no_row() {
    let (consumer, _folder) = sqlite().await;
    let failing = consumer
        .guard_sync(&event("evt_1", "{}"), |tx| {
            tx.execute("INSERT INTO invoice (of) VALUES ('evt_1')", []).unwrap();
            Err::<Bytes, _>("no customer of that name")
        })
        .await;
    assert!(
        matches!(failing, Err(ConsumeError::Failed(why)) if why.to_string() == "no customer of that name")
    );
    let panicking = consumer
        .guard_sync(&event("evt_1", "{}"), |tx| -> Result<Bytes, BoxError> {
            tx.execute("INSERT INTO invoice (of) VALUES ('evt_1')", [])?;
            panic!("in the middle")
        })
        .await;
    assert!(matches!(panicking, Err(ConsumeError::Panicked)));
    assert_eq!(invoices(&consumer).await, 0);
    assert_eq!(invoice(&consumer, event("evt_1", "{}")).await.unwrap(), Consumed::Done("invoice 1".into()));
}

/// O8: the id is bound to its content and to its sender.
#[tokio::test]
async fn o8_another_content_under_the_same_id_is_not_run_and_another_sender_is_another_event() {
    let (consumer, _folder) = sqlite().await;
    invoice(&consumer, event("evt_1", "{\"amount\": 5}")).await.unwrap();
    let other = invoice(&consumer, event("evt_1", "{\"amount\": 6}")).await.unwrap();
    assert_eq!(other, Consumed::Mismatch);
    let elsewhere = Event { source: "shipping", id: "evt_1", payload: b"{\"amount\": 6}" };
    assert_eq!(invoice(&consumer, elsewhere).await.unwrap(), Consumed::Done("invoice 2".into()));
    for bad in ["", "with\nnewline", &"x".repeat(256)] {
        assert!(matches!(invoice(&consumer, event(bad, "")).await, Err(ConsumeError::Bad(_))), "{bad:?}");
    }
    assert_eq!(invoices(&consumer).await, 2);
}

/// While one delivery is worked on, a second is told so, and neither runs nor acknowledges.
#[tokio::test(start_paused = true)]
async fn r2_a_second_delivery_is_in_flight_until_the_first_has_ended() {
    let rows = Rows::new();
    let consumer = Consumer::new(rows.clone(), Terms::new("invoices", WINDOW).unwrap(), deployment_keys());
    let (gate, runs) = (Gate::closed(), Arc::new(AtomicU64::new(0)));
    let deliver = || {
        let (consumer, gate, runs) = (consumer.clone(), gate.clone(), Arc::clone(&runs));
        async move {
            let work = move |mut tx: retrysafe_server::Tx<crate::support::rows::Open>| async move {
                let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
                tx.db().push(format!("invoice {run}"));
                gate.pass().await;
                Ok::<_, BoxError>(Bytes::from(format!("invoice {run}")))
            };
            consumer.guard(&event("evt_1", "{}"), work).await
        }
    };
    let first = tokio::spawn(deliver());
    gate.reached(1).await;
    assert_eq!(deliver().await.unwrap(), Consumed::InFlight);
    // D1: a consumer that is stopped in the middle stops nothing.
    first.abort();
    gate.release();
    crate::support::faulty::settle_down().await;
    assert_eq!(deliver().await.unwrap(), Consumed::Replayed("invoice 1".into()));
    assert_eq!(rows.committed(), ["invoice 1"]);
}

/// D4: the acknowledgement, or the answer of the commit, is lost; the next delivery finds out.
#[tokio::test(start_paused = true)]
async fn d4_a_commit_without_an_answer_is_settled_by_looking_or_by_the_next_delivery() {
    for (planned, told_first, rows_left) in [
        (Planned::AnswerLost, "Done", 1),
        (Planned::RequestLost, "Unknown", 1),
        (Planned::Undone(Undone::Conflict), "Undone", 1),
    ] {
        let rows = Rows::new();
        let consumer =
            Consumer::new(rows.clone(), Terms::new("invoices", WINDOW).unwrap(), deployment_keys());
        rows.ends(planned);
        let deliver = || async {
            let work = |mut tx: retrysafe_server::Tx<crate::support::rows::Open>| async move {
                tx.db().push("invoice".to_owned());
                Ok::<_, BoxError>(Bytes::from_static(b"invoice"))
            };
            consumer.guard(&event("evt_1", "{}"), work).await
        };
        let first = match deliver().await {
            Ok(Consumed::Done(_)) => "Done",
            Err(ConsumeError::Unknown) => "Unknown",
            Err(ConsumeError::Undone(Undone::Conflict)) => "Undone",
            other => panic!("{other:?}"),
        };
        assert_eq!(first, told_first, "{planned:?}");
        assert!(deliver().await.is_ok());
        assert_eq!(rows.committed().len(), rows_left, "{planned:?}");
    }
}

/// SPEC 3.3: after the window the same id is a new event, and its old result can be reaped.
#[tokio::test]
async fn results_are_kept_for_the_window_and_reaped_after_it() {
    let rows = Rows::new();
    let consumer = Consumer::new(rows.clone(), Terms::new("invoices", WINDOW).unwrap(), deployment_keys());
    let work = |mut tx: retrysafe_server::Tx<crate::support::rows::Open>| async move {
        tx.db().push("invoice".to_owned());
        Ok::<_, BoxError>(Bytes::new())
    };
    assert_eq!(consumer.guard(&event("evt_1", ""), work).await.unwrap(), Consumed::Done(Bytes::new()));
    assert_eq!(consumer.guard(&event("evt_1", ""), work).await.unwrap(), Consumed::Replayed(Bytes::new()));
    assert_eq!(consumer.reap(10).await.unwrap(), 0);
    rows.store.clock().advance(Duration::from_secs(73 * 3600));
    assert_eq!(consumer.reap(10).await.unwrap(), 1);
    assert!(rows.now().is_ok());
}

const CONTRACT: &str = r#"
api = "Invoices"
namespace = "invoices-api"
longest_retry_chain = "24h"
unlisted = "refuse"
[scope]
source = "api_key"
rotates = false
[failures]
policy = "A"
[client]
drop_stored_statuses = true
[[endpoint]]
method = "POST"
path = "/invoices"
key = "required"
"#;

/// A mail service that loses the answer to its first call.
#[derive(Clone, Default)]
struct Mail {
    calls: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

async fn invoice_by_mail(
    mut steps: Steps<SqliteStore>,
    request: Request<String>,
    mail: Mail,
) -> Result<Reply, Halt> {
    let of = request.fields;
    let id = steps
        .phase_sync("draft", move |tx| {
            tx.execute("INSERT INTO invoice (of) VALUES (?1)", [of])?;
            Ok(Phase::Point(tx.last_insert_rowid()))
        })
        .await?;
    let asked = mail.clone();
    let receipt: u64 = steps
        .external_or_ask(
            "send",
            &id,
            |_call| async move {
                mail.calls.fetch_add(1, Ordering::SeqCst);
                Err(CallFault::Unknown("the answer was lost".into()))
            },
            |_question: Asked| async move {
                asked.asked.fetch_add(1, Ordering::SeqCst);
                Found::Done(7_u64)
            },
        )
        .await?;
    steps.answer_sync("book", move |_| Ok(Reply::json(200, &(id, receipt)))).await
}

/// A function that calls outside: the call is made once, whoever goes on.
#[tokio::test(flavor = "multi_thread")]
async fn spec_5_3_an_event_in_steps_is_gone_on_with_by_the_next_delivery_and_by_a_completer() {
    for by_completer in [false, true] {
        let (consumer, _folder) = sqlite().await;
        let mail = Mail::default();
        let contract = Contract::parse(CONTRACT, "invoices.toml").unwrap();
        let layer = Retrysafe::builder(contract, consumer.database().clone())
            .fingerprint_keys(deployment_keys())
            .build()
            .unwrap();
        let shape = Shape::new("by-mail").unwrap().phase("draft").unwrap();
        let shape = shape.external("send", External::ASK).unwrap().phase("book").unwrap();
        let plan = {
            let mail = mail.clone();
            Plan::new(shape, move |steps, request: Request<String>| {
                invoice_by_mail(steps, request, mail.clone())
            })
        };
        let quick = retrysafe_server::recovery::Terms {
            pause_first: Duration::from_millis(2),
            pause_longest: Duration::from_millis(4),
            ..Default::default()
        };
        let without = Recovery::of(&layer, consumer.database().clone()).plan(plan.clone()).build().unwrap();
        let recovery = Recovery::of(&layer, consumer.database().clone());
        let recovery = recovery.plan(plan).consumer(&consumer).terms(quick).build().unwrap();
        let deliver = async |recovery, payload: &str| {
            consumer.steps(&event("evt_1", payload), recovery, "by-mail", &"evt_1".to_owned()).await
        };
        assert!(matches!(deliver(&without, "{}").await, Err(ConsumeError::NoSteps(_))));

        assert_eq!(deliver(&recovery, "{}").await.unwrap(), Consumed::InFlight);
        assert_eq!(deliver(&recovery, "{\"other\": 1}").await.unwrap(), Consumed::Mismatch);
        let result = Bytes::from("[1,7]");
        let mut told = Consumed::InFlight;
        for _ in 0..400 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if by_completer && recovery.pass().await.unwrap().completed == 0 {
                continue;
            }
            told = deliver(&recovery, "{}").await.unwrap();
            if told != Consumed::InFlight {
                break;
            }
        }
        let expected =
            if by_completer { Consumed::Replayed(result.clone()) } else { Consumed::Done(result.clone()) };
        assert_eq!(told, expected);
        assert_eq!(deliver(&recovery, "{}").await.unwrap(), Consumed::Replayed(result));
        // And its timeline will tell of that, as far as it was written down.
        let records = consumer.database().list(&Filter::default(), None, 9).await.unwrap();
        let [(_, record)] = records.as_slice() else { panic!("{records:?}") };
        let replays = async || consumer.database().replays(record.status_id).await.unwrap();
        assert_eq!(replays().await, None, "no replay costs a write");
        layer.drain(Duration::ZERO).await;
        let told = replays().await.unwrap();
        assert_eq!(told.times, 1 + u64::from(by_completer));
        assert!(record.opened_at <= told.first && told.first <= told.last);
        layer.drain(Duration::ZERO).await;
        assert_eq!(replays().await, Some(told), "and nothing twice");
        assert_eq!(mail.calls.load(Ordering::SeqCst), 1, "the call is made once");
        assert!(mail.asked.load(Ordering::SeqCst) > 0);
        assert_eq!(invoices(&consumer).await, 1);
    }
}

/// No requests, so no contract: what a consumer says of itself is enough, and the lease is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_only_consumes_writes_no_contract_and_names_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("i.db"))).unwrap());
    store.define("CREATE TABLE invoice (id INTEGER PRIMARY KEY, of TEXT) STRICT").await.unwrap();
    let terms = || Terms::new("by-mail", WINDOW).unwrap();
    assert!(terms().lease(Duration::from_millis(999)).is_err());
    let lease = Duration::from_secs(3);
    let consumer = Consumer::new(store.clone(), terms().lease(lease).unwrap(), deployment_keys());
    let gate = Gate::closed();
    let shape = Shape::new("by-mail").unwrap().phase("draft").unwrap();
    let plan = {
        let gate = gate.clone();
        Plan::new(shape, move |mut steps: Steps<SqliteStore>, request: Request<String>| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                steps
                    .answer_sync("draft", move |tx| {
                        tx.execute("INSERT INTO invoice (of) VALUES (?1)", [&request.fields])?;
                        Ok(Reply::json(200, &request.fields))
                    })
                    .await
            }
        })
    };
    let none = Recovery::<SqliteStore>::of_consumers(&[], Duration::from_secs(60));
    assert!(matches!(none, Err(RecoveryFault::NoConsumer)));
    let recovery = Recovery::of_consumers(std::slice::from_ref(&consumer), Duration::from_secs(60))
        .unwrap()
        .plan(plan)
        .build()
        .unwrap();
    let (again, known) = (consumer.clone(), recovery.clone());
    let delivery = tokio::spawn(async move {
        again.steps(&event("evt_1", "{}"), &known, "by-mail", &"evt_1".to_owned()).await
    });
    gate.reached(1).await;
    let records = store.list(&Filter::default(), None, 9).await.unwrap();
    let until = records[0].1.lease_until().unwrap();
    let now = store.now().unwrap();
    assert!(now < until && until <= now.plus(lease), "{:?}", until.since(now));
    gate.release();
    let result = Bytes::from("\"evt_1\"");
    assert_eq!(delivery.await.unwrap().unwrap(), Consumed::Done(result.clone()));
    let told =
        consumer.steps(&event("evt_1", "{}"), &recovery, "by-mail", &"evt_1".to_owned()).await.unwrap();
    assert_eq!((told, invoices(&consumer).await), (Consumed::Replayed(result), 1));
    // Its upkeep is there without a layer, and counts the claims of consumers.
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    recovery.upkeep(stop).await;
    let days = store.days().await.unwrap();
    assert_eq!((days[0].claims, days[0].orphans), (1, 0));
    assert_eq!(store.replays(records[0].1.status_id).await.unwrap().map(|replays| replays.times), Some(1));
}
