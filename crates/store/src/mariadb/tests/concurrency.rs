//! What sessions do to each other: the rows of the measurements that the design rests on, through the store.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    record::Expect,
    time::Wall,
};

use super::TestDatabase;
use crate::{
    Store, Written,
    conformance::samples::{
        address, answer, apply, at, claim, done, done_with, held, holder, reapable, takeover, won, write,
    },
    sql::row::day_of,
};

/// What another session does: inserts the row of `address("k")` and keeps its transaction open.
const UNCOMMITTED: &str = "START TRANSACTION; INSERT INTO retrysafe_key \
    (namespace, account, `key`, attempt, status, fence, state, due_ms, data) \
    VALUES ('shop', 'alice', 'k', REPEAT('a', 16), REPEAT('s', 16), 1, 0, 1, x'01')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_of_fifty_at_once_through_two_stores_exactly_one_wins_and_every_loser_sees_it() {
    let database = TestDatabase::make().await;
    let (one, two) = (database.store().await, database.store().await);
    for round in 0..20_u128 {
        let address = address(&format!("race-{round}"));
        let claims =
            (1..=50_u128).map(|n| {
                let store = if n.is_multiple_of(2) { &one } else { &two };
                let address = &address;
                async move {
                    store.write_if(address, &write(Expect::Absent, &held(round * 1_000 + n))).await.unwrap()
                }
            });
        let answers = futures_util::future::join_all(claims).await;
        let winners = answers.iter().filter(|answer| matches!(answer, Written::Yes(_))).count();
        assert_eq!(winners, 1);
        assert!(!answers.contains(&Written::No(None)), "an empty answer never becomes an answer");
    }
}

#[tokio::test]
async fn a_claim_waits_for_an_uncommitted_duplicate_and_sees_it_when_it_is_committed() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let theirs = claim(&store, &address("other"), 1).await;
    let mut other = database.session().await;
    // A record that can be decoded, moved to the address of the race.
    other
        .query_drop(
            "START TRANSACTION; INSERT INTO retrysafe_key SELECT namespace, account, 'k', attempt, status, fence, \
             state, due_ms, expires_ms, resource, response_day, data FROM retrysafe_key WHERE `key` = 'other'",
        )
        .await
        .unwrap();
    let (address, opening) = (address("k"), write(Expect::Absent, &held(2)));
    let claimed = store.write_if(&address, &opening);
    let committed = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.query_drop("COMMIT").await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claimed, committed);
    // READ COMMITTED: the default isolation shows no row here.
    assert_eq!(claimed.unwrap(), Written::No(Some(theirs)));
}

#[tokio::test]
async fn when_the_first_of_three_rolls_back_the_deadlock_of_the_others_is_shown_to_nobody() {
    let database = TestDatabase::make().await;
    // Long enough that nobody gives up before the race is had, however slow the machine.
    let mut options = database.options();
    options.call_timeout = Duration::from_secs(60);
    let store = super::MariaStore::open(options).await.unwrap();
    let mut deadlocks = 0;
    for round in 0..10_u128 {
        let mut first = database.session().await;
        first.query_drop(UNCOMMITTED).await.unwrap();
        let before = deadlocks_of(&mut first).await;
        let address = address("k");
        let claims =
            (1..=2_u128).map(|n| {
                let (store, address) = (&store, &address);
                async move {
                    store.write_if(address, &write(Expect::Absent, &held(round * 10 + n))).await.unwrap()
                }
            });
        let rolled_back = async {
            wait_for_waiters(&database, 2).await;
            first.query_drop("ROLLBACK").await.unwrap();
        };
        let (claims, ()) = tokio::join!(futures_util::future::join_all(claims), rolled_back);
        assert_eq!(claims.iter().filter(|claim| matches!(claim, Written::Yes(_))).count(), 1, "{claims:?}");
        assert_eq!(
            claims.iter().filter(|claim| matches!(claim, Written::No(Some(_)))).count(),
            1,
            "{claims:?}"
        );
        deadlocks += deadlocks_of(&mut first).await - before;
        first.query_drop("DELETE FROM retrysafe_key").await.unwrap();
    }
    assert!(deadlocks > 0, "the race that this is about did not happen");
}

#[tokio::test]
async fn a_replay_writes_nothing_and_takes_no_fence() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let stored = apply(&store, &address, holder(&mine), &done(&mine)).await;
    let mut session = database.session().await;
    let before = next_fence(&mut session).await;
    let changes = changes_of(&mut session).await;
    for n in 2..=100_u128 {
        let answer = store.write_if(&address, &write(Expect::Absent, &held(n))).await.unwrap();
        assert_eq!(answer, Written::No(Some(stored.clone())));
    }
    assert_eq!(changes_of(&mut session).await, changes);
    assert_eq!(next_fence(&mut session).await, before + 1, "only this test took one");
}

#[tokio::test]
async fn f16_no_sql_mode_or_collation_of_the_server_makes_two_keys_one() {
    let database = TestDatabase::make().await;
    database
        .session()
        .await
        .query_drop("ALTER DATABASE CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        .await
        .unwrap();
    let store = database.store().await;
    let long = "k".repeat(1024);
    let keys = ["abc", "ABC", "abc ", "abc  ", " abc", "ab", &long, &long[1..]];
    for (n, key) in (1..).zip(keys) {
        claim(&store, &address(key), n).await;
    }
    for (n, key) in (1..).zip(keys) {
        let record = store.load(&address(key)).await.unwrap().unwrap();
        assert_eq!(record.attempt, held(n).attempt, "{} bytes", key.len());
    }
    // Longer than the column: refused, and never cut down to another key.
    let too_long = address(&"k".repeat(1025));
    let refused = store.write_if(&too_long, &write(Expect::Absent, &held(99))).await.unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Full);
    // The longest address that there can be.
    let longest = Address::new(
        Namespace::new(&"n".repeat(Namespace::MAX_BYTES)).unwrap(),
        Account::new(&[&"a".repeat(Account::MAX_BYTES)]).unwrap(),
        Key::trusted(&long).unwrap(),
    );
    claim(&store, &longest, 50).await;
    assert!(store.load(&longest).await.unwrap().is_some());
}

#[tokio::test]
async fn r16_the_clock_is_the_databases_and_its_jump_closes_the_store() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let mut session = database.session().await;
    let now: i64 = session
        .query_first("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)")
        .await
        .unwrap()
        .unwrap();
    let told = store.now().unwrap().unix_ms();
    assert!((told - now).abs() < 2_000, "{told} is the database's time, {now}");
    // A session's own idea of the time zone changes nothing: the mark is UTC.
    let mark: i64 = session.query_first("SELECT clock_ms FROM retrysafe_meta").await.unwrap().unwrap();
    assert!((mark - now).abs() < 10_000, "{mark}");
    // The mark says that it was long ago: the database's clock ran off.
    let long_ago = now - 25 * 3_600_000;
    session.query_drop(format!("UPDATE retrysafe_meta SET clock_ms = {long_ago}")).await.unwrap();
    let late = database.store().await;
    assert_eq!(late.now().unwrap_err().kind(), crate::ErrorKind::ClockJumped);
    late.acknowledge_clock_jump().await.unwrap();
    assert!(late.now().unwrap() >= Wall::from_unix_ms(now));
    // A mark ahead of the clock is kept: time never goes back.
    let ahead = now + 3_600_000;
    session.query_drop(format!("UPDATE retrysafe_meta SET clock_ms = {ahead}")).await.unwrap();
    let third = database.store().await;
    assert!(third.now().unwrap() >= Wall::from_unix_ms(ahead));
}

#[tokio::test]
async fn protocol_7_a_new_epoch_is_above_every_fence_before_it() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let before = claim(&store, &address("before"), 1).await.fence;
    let epoch = store.bump_epoch().await.unwrap();
    let after = claim(&store, &address("after"), 2).await.fence;
    assert_eq!((before.epoch(), epoch, after.epoch()), (0, 1, 1));
    let over = database.store().await;
    let taken = apply(&over, &address("before"), takeover(&held(1), at(31)), &held(3)).await.fence;
    assert!(taken > after);
}

#[tokio::test]
async fn t5_long_answers_are_kept_by_day_and_dropped_only_when_nothing_names_them() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let mut session = database.session().await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let mut outcome = answer(b"");
    outcome.body = retrysafe_core::outcome::Body::Kept(vec![7; 5_000].into());
    let stored = apply(&store, &address, holder(&mine), &done_with(&mine, outcome, None)).await;
    assert_eq!(bodies(&mut session).await, 1);
    let reap_at = at(0).plus(crate::conformance::samples::REAP);

    // Weeks before: partitions are made, and what stood in the last one moves along.
    store.due(crate::Due::Reapable, at(0), 1).await.unwrap();
    assert!(partitions(&mut session).await > 8);
    assert_eq!(store.load(&address).await.unwrap(), Some(stored));
    // Weeks after, but the record was not reaped yet: its body stays.
    let later = reap_at.plus(Duration::from_secs(10 * 24 * 3_600));
    assert_eq!(store.due(crate::Due::Reapable, later, 10).await.unwrap().len(), 1);
    assert_eq!(bodies(&mut session).await, 1);
    assert!(store.remove_if(&address, reapable(&mine, later)).await.unwrap());
    // The next day it is dropped, and its day with it.
    let next = later.plus(Duration::from_secs(24 * 3_600));
    assert_eq!(store.due(crate::Due::Reapable, next, 10).await.unwrap(), []);
    assert_eq!(bodies(&mut session).await, 0);
    let left: Option<String> = session
        .query_first(format!(
            "SELECT partition_name FROM information_schema.partitions WHERE table_schema = DATABASE() \
             AND table_name = 'retrysafe_response' AND partition_name = 'day{}'",
            day_of(reap_at)
        ))
        .await
        .unwrap();
    assert_eq!(left, None);
}

#[tokio::test]
async fn t5_reaping_waits_for_nobody_who_holds_the_partitions() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let mut reader = database.session().await;
    reader.query_drop("START TRANSACTION; SELECT COUNT(*) FROM retrysafe_response").await.unwrap();
    // A second at most, and reaping goes on without.
    store.due(crate::Due::Reapable, at(0), 1).await.unwrap();
    assert_eq!(partitions(&mut reader).await, 1, "not made while somebody reads");
    reader.query_drop("COMMIT").await.unwrap();
    store.due(crate::Due::Reapable, at(0), 1).await.unwrap();
    assert!(partitions(&mut reader).await > 8, "made up for");
}

#[tokio::test]
async fn t4_the_reaper_never_sees_what_is_not_completed() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    claim(&store, &address("in flight"), 1).await;
    let far = at(1_000_000_000);
    assert_eq!(store.due(crate::Due::Reapable, far, 10).await.unwrap(), []);
    assert_eq!(store.due(crate::Due::LeaseEnded, far, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn t4_t5_a_batch_takes_what_is_past_its_threshold_and_leaves_what_somebody_is_changing() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    for n in 1..=30 {
        let at = address(&format!("k{n}"));
        let mine = claim(&store, &at, n).await;
        apply(&store, &at, holder(&mine), &done(&mine)).await;
    }
    claim(&store, &address("in flight"), 99).await;
    let far = at(1_000_000_000);
    assert_eq!(store.reap_batch(at(0), 100).await.unwrap(), Some(0), "none is past it");
    let mut other = database.session().await;
    other.query_drop("START TRANSACTION").await.unwrap();
    other
        .query_drop(
            "UPDATE retrysafe_key SET expires_ms = 1 WHERE `key` = 'k7' AND namespace = 'tests' LIMIT 1",
        )
        .await
        .unwrap();
    let locked: i64 =
        other.query_first("SELECT COUNT(*) FROM retrysafe_key WHERE expires_ms = 1").await.unwrap().unwrap();
    let mut batches = Vec::new();
    loop {
        // It stands behind nobody.
        let batch = tokio::time::timeout(Duration::from_secs(2), store.reap_batch(far, 10)).await;
        match batch.expect("no waiting").unwrap() {
            Some(0) => break,
            batch => batches.extend(batch),
        }
    }
    assert_eq!(batches.iter().sum::<usize>(), 30 - usize::try_from(locked).unwrap());
    assert!(batches.iter().all(|batch| *batch <= 10), "{batches:?}");
    other.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(store.reap_batch(far, 10).await.unwrap(), Some(usize::try_from(locked).unwrap()));
    assert_eq!(store.due(crate::Due::LeaseEnded, far, 10).await.unwrap().len(), 1, "in flight stays");
}

#[tokio::test]
async fn s20_records_that_cannot_be_read_keep_nobody_else_from_being_looked_after() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    for n in 1..=20 {
        claim(&store, &address(&format!("k{n}")), n).await;
    }
    // All but one, and that is the last in line.
    let mut session = database.session().await;
    session
        .query_drop("UPDATE retrysafe_key SET data = CONCAT(x'ff', SUBSTR(data, 2)) WHERE `key` <> 'k20'")
        .await
        .unwrap();
    session.query_drop("UPDATE retrysafe_key SET due_ms = due_ms + 1 WHERE `key` = 'k20'").await.unwrap();
    let due = store.due(crate::Due::LeaseEnded, at(1_000_000_000), 2).await.unwrap();
    assert_eq!(due.iter().map(|(at, _)| at.key().as_str()).collect::<Vec<_>>(), ["k20"]);
    let error = store.load(&address("k1")).await.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::UnknownVersion);
}

#[tokio::test]
async fn r10_a_claim_on_a_record_that_was_released_in_between_is_made_again() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let mut first = database.session().await;
    first.query_drop(UNCOMMITTED).await.unwrap();
    let (address, opening) = (address("k"), write(Expect::Absent, &held(2)));
    let claimed = store.write_if(&address, &opening);
    let released = async {
        wait_for_waiters(&database, 1).await;
        first.query_drop("ROLLBACK").await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claimed, released);
    won(claimed.unwrap());
}

async fn bodies(session: &mut mysql_async::Conn) -> i64 {
    session.query_first("SELECT COUNT(*) FROM retrysafe_response").await.unwrap().unwrap()
}

async fn partitions(session: &mut mysql_async::Conn) -> i64 {
    session
        .query_first(
            "SELECT COUNT(*) FROM information_schema.partitions WHERE table_schema = DATABASE() \
             AND table_name = 'retrysafe_response'",
        )
        .await
        .unwrap()
        .unwrap()
}

async fn next_fence(session: &mut mysql_async::Conn) -> i64 {
    session.query_first("SELECT NEXT VALUE FOR retrysafe_fence").await.unwrap().unwrap()
}

/// How many rows of the key table were ever changed, as InnoDB counts them.
async fn changes_of(session: &mut mysql_async::Conn) -> i64 {
    session
        .query_first(
            "SELECT CAST(modified_counter AS SIGNED) FROM information_schema.innodb_sys_tablestats \
             WHERE name = CONCAT(DATABASE(), '/retrysafe_key')",
        )
        .await
        .unwrap()
        .unwrap()
}

async fn deadlocks_of(session: &mut mysql_async::Conn) -> i64 {
    let (_, count): (String, String) =
        session.query_first("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").await.unwrap().unwrap();
    count.parse().unwrap()
}

/// Until `count` transactions of the database wait for a lock, so that a race is had and not hoped for.
///
/// InnoDB makes this table anew only for a reader that comes 100 ms after the last one, so tests that look more often, or
/// by turns, show each other the same old state for ever.
pub(super) async fn wait_for_waiters(database: &TestDatabase, count: i64) {
    static ONE_LOOKS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let mut session = database.session().await;
    for _ in 0..200 {
        let _turn = ONE_LOOKS.lock().await;
        tokio::time::sleep(Duration::from_millis(110)).await;
        let waiting: i64 = session
            .query_first(
                "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
                 ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'",
            )
            .await
            .unwrap()
            .unwrap();
        if waiting >= count {
            return;
        }
    }
    panic!("nobody waits for a lock");
}

#[tokio::test]
async fn f18_the_first_secret_of_fingerprints_is_the_one_of_the_store() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let key = |secret: u8| retrysafe_core::fingerprint::DeploymentKey::new(1, &[secret; 32]).unwrap();
    assert!(store.has_secret(&key(1)).await.unwrap());
    assert!(store.has_secret(&key(1)).await.unwrap());
    assert!(!store.has_secret(&key(2)).await.unwrap());
}
