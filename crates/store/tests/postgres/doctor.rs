//! What the doctor finds.

use retrysafe_store::{
    doctor::{Finding, Severity},
    postgres::{Mode, doctor},
};
use retrysafe_testbed::{
    pgbouncer::PgBouncer,
    postgres::{Database, Throwaway, host_and_port, shared},
};

use crate::support::{SchemaPlace, driver};

fn rules(findings: &[Finding], severity: Severity) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.severity == severity).map(|finding| finding.rule).collect()
}

async fn look(url: &str, place: &SchemaPlace, mode: Mode) -> Vec<Finding> {
    doctor(&driver(url, mode), &place.schema, mode == Mode::Prepared).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_server_has_no_errors_and_a_bad_one_has_each() {
    let server = Throwaway::start(&[("client_connection_check_interval", "1s")]);
    let database = Database::on(&server.address());
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    drop(place.store());
    let found = look(&database.url(), &place, Mode::Prepared).await;
    assert_eq!(rules(&found, Severity::Error), [] as [&str; 0], "{found:?}");
    assert_eq!(rules(&found, Severity::Warning), [] as [&str; 0], "{found:?}");
    assert_eq!(rules(&found, Severity::Note), ["failover_forgets"]);

    let name = database.name();
    database.psql(&format!(
        "ALTER DATABASE {name} SET synchronous_commit = off;
         ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read';
         ALTER DATABASE {name} SET search_path = public, pg_catalog;
         ALTER DATABASE {name} SET bytea_output = escape;
         ALTER DATABASE {name} SET client_connection_check_interval = 0;
         UPDATE {}.meta SET clock_ms = clock_ms - 90000000",
        place.schema
    ));
    let found = look(&database.url(), &place, Mode::Prepared).await;
    assert_eq!(rules(&found, Severity::Error), ["search_path", "synchronous_commit_off", "clock_jumped"]);
    assert_eq!(
        rules(&found, Severity::Warning),
        ["isolation", "bytea_output", "client_connection_check_interval"]
    );
    for finding in &found {
        assert!(!finding.mend.is_empty() && !finding.what.is_empty());
    }
    // The store works at that isolation all the same.
    retrysafe_store::conformance::run(|| SchemaPlace::new(&database.url(), Mode::Prepared)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_is_told_apart() {
    let server = Throwaway::start(&[("fsync", "off"), ("full_page_writes", "off")]);
    let database = Database::on(&server.address());
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let found = look(&database.url(), &place, Mode::Prepared).await;
    assert_eq!(rules(&found, Severity::Error), ["not_crash_safe", "not_crash_safe"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_and_permissions_are_named() {
    let database = Database::create();
    let mut place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let role = format!("{}_doctor", database.name());
    database.psql(&format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {} TO {role}", place.schema));
    database.psql(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {role}", place.schema));
    let url = database.url().replace("postgres@", &format!("{role}@"));
    let found = look(&url, &place, Mode::Prepared).await;
    let permissions = found.iter().find(|finding| finding.rule == "permissions").unwrap();
    assert!(permissions.what.contains("INSERT key") && permissions.what.contains("fence"), "{permissions:?}");
    assert!(!permissions.what.contains("SELECT key"));
    database.psql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));

    place.schema = retrysafe_store::postgres::Schema::new("nothing_here").unwrap();
    let found = look(&database.url(), &place, Mode::Prepared).await;
    assert!(rules(&found, Severity::Error).contains(&"no_tables"));
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_a_pooler_is_recognised() {
    let (database, (host, port)) = (Database::create(), host_and_port(shared()));
    let pooler = PgBouncer::start(&host, port, 4);
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let behind = database.url_at(&pooler.address());
    let severity = |found: Vec<Finding>| {
        found.iter().find(|finding| finding.rule == "pooler_transaction_mode").map(|finding| finding.severity)
    };
    assert_eq!(severity(look(&behind, &place, Mode::Unnamed).await), Some(Severity::Note));
    assert_eq!(severity(look(&database.url(), &place, Mode::Unnamed).await), None);
}
