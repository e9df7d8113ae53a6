//! A hundred instances that share one account keep one share of retries, whatever store it is in.

use std::sync::Arc;

use retrysafe_client::fleet::{
    FleetFault, FleetStore, MariaFleet, MemoryFleet, PgFleet, RedisFleet, SqliteFleet, join,
};
use retrysafe_core::retry::{
    Budget, Mono, Pace,
    budget::{FleetRule, Report, Rules},
};
use retrysafe_testbed::{mariadb, postgres::Database, redis};

const INSTANCES: usize = 100;
const CALLS: usize = 20;

fn budget() -> Budget {
    Budget::new(Rules { fleet: true, ..Rules::NONE })
}

/// A total outage: every call of every instance wants both of its retries. Returns how many the fleet got.
async fn outage(account: &dyn FleetStore) -> usize {
    let instances: Vec<Budget> = (0..INSTANCES).map(|_| budget()).collect();
    let mut retries = 0;
    for _ in 0..3 {
        for (number, budget) in instances.iter().enumerate() {
            for _ in 0..CALLS {
                let mut entry = budget.enter(Mono::START);
                for _ in 0..2 {
                    if let Ok(permit) = entry.take(Pace::Transient, Mono::START) {
                        permit.spend();
                        retries += 1;
                    }
                }
            }
            let report = budget.report(Mono::START).unwrap();
            let lease = account.exchange(number as u64, &report).await.unwrap();
            // The answer was lost: the same report is answered with the same lease.
            assert_eq!(account.exchange(number as u64, &report).await.unwrap(), lease);
            budget.leased(&lease, Mono::START);
        }
    }
    retries
}

fn keeps_one_share(retries: usize) {
    let rule = FleetRule::default().ratio;
    let first_attempts = 3 * INSTANCES * CALLS;
    let share = first_attempts * rule.per_million as usize / 1_000_000 + rule.reserve as usize;
    assert!(retries > 0 && retries <= share, "{retries} retries for a share of {share}");
    // Each by itself would have had its reserve: a hundred times ten, before any traffic.
    assert!(retries < INSTANCES * rule.reserve as usize + share);
}

#[tokio::test]
async fn a_hundred_instances_keep_one_share_in_memory() {
    keeps_one_share(outage(&MemoryFleet::new(FleetRule::default())).await);
}

#[tokio::test]
async fn a_hundred_instances_keep_one_share_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let account =
        SqliteFleet::open(folder.path().join("fleet.db"), "payments", FleetRule::default()).unwrap();
    keeps_one_share(outage(&account).await);
}

#[tokio::test]
async fn a_hundred_instances_keep_one_share_in_postgres() {
    let database = tokio::task::spawn_blocking(Database::create).await.unwrap();
    let pool = sqlx::PgPool::connect(&database.url()).await.unwrap();
    let account = PgFleet::open(pool, "payments", FleetRule::default()).await.unwrap();
    keeps_one_share(outage(&account).await);
}

#[tokio::test]
async fn a_hundred_instances_keep_one_share_in_mariadb() {
    let database = tokio::task::spawn_blocking(mariadb::Database::create).await.unwrap();
    let pool = mysql_async::Pool::new(database.url().as_str());
    let account = MariaFleet::open(pool.clone(), "payments", FleetRule::default()).await.unwrap();
    keeps_one_share(outage(&account).await);
    in_step_or_at_once(|| MariaFleet::open(pool.clone(), "race", FleetRule::default())).await;
    pool.disconnect().await.unwrap();
    tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
}

#[tokio::test]
async fn a_hundred_instances_keep_one_share_in_redis() {
    let space = tokio::task::spawn_blocking(redis::Space::create).await.unwrap();
    let named = |name: &str| format!("{}{name}", space.prefix());
    let account = RedisFleet::open(space.url(), &named("payments"), FleetRule::default()).await.unwrap();
    keeps_one_share(outage(&account).await);
    let race = named("race");
    in_step_or_at_once(|| RedisFleet::open(space.url(), &race, FleetRule::default())).await;
    tokio::task::spawn_blocking(move || drop(space)).await.unwrap();
}

/// Instances that exchange at the same moment get what they would have got one after the other: nobody's report is lost.
async fn in_step_or_at_once<A, F>(open: impl Fn() -> F)
where
    A: FleetStore + 'static,
    F: Future<Output = Result<A, FleetFault>>,
{
    const AT_ONCE: u32 = 20;
    const FIRST_ATTEMPTS: u32 = 50;
    let account = Arc::new(open().await.unwrap());
    let report = Report { number: 1, first_attempts: FIRST_ATTEMPTS, wanted: 1_000, ..Report::default() };
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|instance| {
            let account = Arc::clone(&account);
            tokio::spawn(async move { account.exchange(u64::from(instance), &report).await.unwrap().tokens })
        })
        .collect();
    let mut leased = 0;
    for task in tasks {
        leased += u64::from(task.await.unwrap());
    }
    // The last one sees the first attempts of all, and takes what the others left. A fleet gets a tenth of its share in each
    // tenth of the window: a report that was lost would leave that short of a token.
    let last = Report { number: 1, wanted: 100_000, ..Report::default() };
    leased += u64::from(account.exchange(u64::from(AT_ONCE), &last).await.unwrap().tokens);
    let rule = FleetRule::default().ratio;
    let share = u64::from(AT_ONCE * FIRST_ATTEMPTS) * u64::from(rule.per_million) / 1_000_000
        + u64::from(rule.reserve);
    assert!(leased >= share / 10 && leased <= share, "{leased} tokens of {share}");
}

/// The task brings tokens, and an instance without any does not retry.
#[tokio::test]
async fn a_member_gets_tokens_and_an_outsider_none() {
    let budget = budget();
    assert!(budget.enter(Mono::START).take(Pace::Transient, Mono::START).is_err());
    let account: Arc<dyn FleetStore> = Arc::new(MemoryFleet::new(FleetRule::default()));
    let _membership = join(budget.clone(), account);
    let host = retrysafe_client::Host::default();
    for _ in 0..500 {
        tokio::task::yield_now().await;
        if budget.enter(host.now()).take(Pace::Transient, host.now()).is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no token came");
}
