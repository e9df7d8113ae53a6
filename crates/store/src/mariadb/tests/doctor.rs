//! What is wrong with a server, and that it is said.

use mysql_async::prelude::Queryable;
use retrysafe_testbed::mariadb::{Database, Throwaway};

use super::{MariaOptions, MariaStore, TestDatabase};

async fn rules(options: &MariaOptions, business: &[&str]) -> Vec<&'static str> {
    let business: Vec<String> = business.iter().map(ToString::to_string).collect();
    let findings = MariaStore::doctor(options, &business).await.unwrap();
    assert!(findings.is_sorted_by_key(|finding| finding.severity), "the worst first");
    findings.into_iter().map(|finding| finding.rule).collect()
}

#[tokio::test]
async fn the_doctor_finds_tables_that_keep_what_was_rolled_back() {
    let database = TestDatabase::make().await;
    let mut session = database.session().await;
    session
        .query_drop(
            "CREATE TABLE safe (id INT) ENGINE = InnoDB; CREATE TABLE old (id INT) ENGINE = MyISAM; \
             CREATE TABLE newer (id INT) ENGINE = Aria",
        )
        .await
        .unwrap();
    let sound = rules(&database.options(), &["safe"]).await;
    for rule in ["no_transactions", "no_tables", "engine", "collation", "permissions", "clock_jumped"] {
        assert!(!sound.contains(&rule), "{sound:?}");
    }
    let found = rules(&database.options(), &["safe", "old", "newer", "none"]).await;
    assert_eq!(found.iter().filter(|rule| **rule == "no_transactions").count(), 2, "{found:?}");
    assert!(found.contains(&"no_such_table"), "{found:?}");
}

#[tokio::test]
async fn f16_the_doctor_finds_an_address_that_a_collation_compares() {
    let database = TestDatabase::make().await;
    database
        .session()
        .await
        .query_drop(
            "ALTER TABLE retrysafe_key MODIFY `key` VARCHAR(200) CHARACTER SET utf8mb4 \
             COLLATE utf8mb4_general_ci NOT NULL",
        )
        .await
        .unwrap();
    assert!(rules(&database.options(), &[]).await.contains(&"collation"));
}

#[tokio::test]
async fn the_doctor_says_when_there_are_no_tables_and_when_the_clock_ran_off() {
    let database = TestDatabase::make().await;
    let mut session = database.session().await;
    session.query_drop("UPDATE retrysafe_meta SET clock_ms = 1").await.unwrap();
    assert!(rules(&database.options(), &[]).await.contains(&"clock_jumped"));
    session.query_drop("UPDATE retrysafe_meta SET clock_ms = 4102444800000").await.unwrap();
    assert!(rules(&database.options(), &[]).await.contains(&"clock_behind"));
    session.query_drop("DROP TABLE retrysafe_migration").await.unwrap();
    assert!(rules(&database.options(), &[]).await.contains(&"no_tables"));
}

#[tokio::test]
async fn the_doctor_finds_a_server_that_forgets_and_a_user_that_may_too_little() {
    let server = Throwaway::start(&[
        ("innodb-flush-log-at-trx-commit", "2"),
        ("innodb-rollback-on-timeout", "ON"),
        ("max-allowed-packet", "1048576"),
    ]);
    let database = TestDatabase::with_tables(Database::on(&server.address())).await;
    let found = rules(&database.options(), &[]).await;
    for rule in ["flush_log", "rollback_on_timeout", "max_allowed_packet"] {
        assert!(found.contains(&rule), "{found:?}");
    }
    let name = database.0.name();
    database
        .session()
        .await
        .query_drop(format!(
            "CREATE USER little@'127.0.0.1'; GRANT SELECT ON {name}.* TO little@'127.0.0.1'; \
             GRANT UPDATE ON {name}.retrysafe_meta TO little@'127.0.0.1'"
        ))
        .await
        .unwrap();
    let little = database.0.url_at(&server.address().replace("root", "little"));
    let options = MariaOptions::new(&little).unwrap();
    let findings = MariaStore::doctor(&options, &[]).await.unwrap();
    let denied = findings.iter().find(|finding| finding.rule == "permissions").unwrap();
    assert!(denied.what.contains("insert into retrysafe_key"), "{denied:?}");
    assert!(!denied.what.contains("read retrysafe_key"), "{denied:?}");
}
