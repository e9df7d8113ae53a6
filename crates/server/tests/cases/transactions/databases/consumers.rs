//! `Consumer::guard` (SPEC 11.3).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use retrysafe_server::{
    BoxError,
    consume::{ConsumeError, Consumed, Consumer, Event, Terms},
};
use retrysafe_store::{Filter, Store};

use super::{Place, on_both};
use crate::support::{api::deployment_keys, faulty::Gate};

const WINDOW: Duration = Duration::from_secs(3600);

/// A process that consumes.
async fn consumer<P: Place>(place: &P) -> Consumer<P::Store> {
    Consumer::new(place.open().await, Terms::new("invoices", WINDOW).unwrap(), deployment_keys())
}

/// How a run of the function ends.
#[derive(Clone, Copy)]
enum End {
    Done,
    Fails,
    Panics,
}

async fn deliver<P: Place>(
    consumer: &Consumer<P::Store>,
    id: &str,
    payload: &str,
    gate: &Gate,
    runs: &Arc<AtomicU64>,
    end: End,
) -> Result<Consumed, ConsumeError> {
    let (gate, runs) = (gate.clone(), Arc::clone(runs));
    let event = Event { source: "billing", id, payload: payload.as_bytes() };
    consumer
        .guard(&event, move |mut tx| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            P::run(tx.db(), "INSERT INTO orders (amount) VALUES (5)").await?;
            tx.effect("invoice").await?;
            gate.pass().await;
            match end {
                End::Done => Ok::<_, BoxError>(Bytes::from(format!("invoice {run}"))),
                End::Fails => Err("no customer of that name".into()),
                End::Panics => panic!("in the middle"),
            }
        })
        .await
}

on_both!(
    /// O7: the mark is made in the transaction of the rows.
    o7_deliveries_at_once_to_two_processes_make_one_invoice,
    /// O6: what fails is not marked as done, so its event is not lost.
    o6_a_function_that_fails_or_panics_leaves_no_mark_and_no_row,
    /// O8: the id is bound to its content.
    o8_another_content_under_the_same_id_is_not_run,
);

async fn o7_deliveries_at_once_to_two_processes_make_one_invoice<P: Place>() {
    let place = P::make().await;
    let (one, two) = (consumer(&place).await, consumer(&place).await);
    let runs = Arc::default();
    let gate = Gate::closed();
    // While the first is worked on, every other is in flight, and is not acknowledged.
    let first = tokio::spawn({
        let (one, gate, runs) = (one.clone(), gate.clone(), Arc::clone(&runs));
        async move { deliver::<P>(&one, "evt_1", "{}", &gate, &runs, End::Done).await }
    });
    gate.reached(1).await;
    let others = join_all((0..10).map(|n| {
        let consumer = if n % 2 == 0 { &one } else { &two };
        deliver::<P>(consumer, "evt_1", "{}", &gate, &runs, End::Done)
    }));
    for other in others.await {
        assert_eq!(other.unwrap(), Consumed::InFlight);
    }
    assert_eq!(place.rows(), 0);
    gate.release();
    assert_eq!(first.await.unwrap().unwrap(), Consumed::Done("invoice 1".into()));
    let again = deliver::<P>(&two, "evt_1", "{}", &gate, &runs, End::Done).await.unwrap();
    assert_eq!(again, Consumed::Replayed("invoice 1".into()));
    // And in a race, with nobody held up.
    let told = join_all((0..40).map(|n| {
        let consumer = if n % 2 == 0 { &one } else { &two };
        deliver::<P>(consumer, "evt_2", "{}", &gate, &runs, End::Done)
    }))
    .await;
    let done = |told: &Result<Consumed, _>| matches!(told, Ok(Consumed::Done(_)));
    assert_eq!(told.iter().filter(|told| done(told)).count(), 1, "{told:?}");
    assert_eq!((runs.load(Ordering::SeqCst), place.rows()), (2, 2));
}

async fn o6_a_function_that_fails_or_panics_leaves_no_mark_and_no_row<P: Place>() {
    let place = P::make().await;
    let consumer = consumer(&place).await;
    let (runs, gate) = (Arc::default(), Gate::open());
    let failed = deliver::<P>(&consumer, "evt_1", "{}", &gate, &runs, End::Fails).await;
    assert!(
        matches!(&failed, Err(ConsumeError::Failed(why)) if why.to_string() == "no customer of that name"),
        "{failed:?}"
    );
    let panicked = deliver::<P>(&consumer, "evt_1", "{}", &gate, &runs, End::Panics).await;
    assert!(matches!(panicked, Err(ConsumeError::Panicked)), "{panicked:?}");
    assert_eq!(consumer.database().list(&Filter::default(), None, 10).await.unwrap(), []);
    assert_eq!(place.rows(), 0);
    let done = deliver::<P>(&consumer, "evt_1", "{}", &gate, &runs, End::Done).await.unwrap();
    assert_eq!((done, place.rows()), (Consumed::Done("invoice 3".into()), 1));
}

async fn o8_another_content_under_the_same_id_is_not_run<P: Place>() {
    let place = P::make().await;
    let consumer = consumer(&place).await;
    let (runs, gate) = (Arc::default(), Gate::open());
    deliver::<P>(&consumer, "evt_1", "{\"amount\": 5}", &gate, &runs, End::Done).await.unwrap();
    let other = deliver::<P>(&consumer, "evt_1", "{\"amount\": 6}", &gate, &runs, End::Done).await.unwrap();
    assert_eq!(other, Consumed::Mismatch);
    assert_eq!((runs.load(Ordering::SeqCst), place.rows()), (1, 1));
}
