//! The public suite, in every way of sending statements.

use retrysafe_store::{conformance, postgres::Mode};
use retrysafe_testbed::postgres::Database;

use crate::support::SchemaPlace;

async fn passes(mode: Mode) {
    let database = Database::create();
    conformance::run(|| SchemaPlace::new(&database.url(), mode)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_with_prepared_statements() {
    passes(Mode::Prepared).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_with_statements_without_names() {
    passes(Mode::Unnamed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_with_the_simple_protocol() {
    passes(Mode::Simple).await;
}
