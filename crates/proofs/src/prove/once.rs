//! main-job.1: identical requests, together and late, leave one effect per key.
//!
//! Two races against each shape of deployment: 50 at once, and 20 spread over 20 ms on a handler that takes 4.
//! All answers are kept; the ledger is read once at the end, and every race is judged by both.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use super::Scale;
use crate::book::effects;
use crate::contract::Terms;
use crate::judge::{Patience, Verdict, judge};
use crate::process::Server;
use crate::race::{Outcome, Racers};
use crate::report::Progress;
use crate::subjects::{GATEWAY, GatewayStore, ShopTerms, gateway, service, shop};
use crate::tools::scratch;
use crate::wire::Key;

const ROUNDS: usize = 1_000;
const QUICK_ROUNDS: usize = 20;
pub(crate) const AT_ONCE: usize = 50;
const LATE_KEYS: usize = 100;
const QUICK_LATE_KEYS: usize = 10;
const LATE_REQUESTS: usize = 20;
const LATE_SPREAD: Duration = Duration::from_millis(20);
const HANDLER: Duration = Duration::from_millis(4);
const BODY: &str = r#"{"amount":4200,"currency":"eur","note":"one pair of boots"}"#;

/// A deployment under proof.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Where the requests go, in turn.
    pub(crate) targets: Vec<SocketAddr>,
    /// Who keeps the ledger.
    pub(crate) ledger: SocketAddr,
    pub(crate) patience: Patience,
}

/// How many of each race.
#[derive(Clone, Copy)]
pub(crate) struct Races {
    pub(crate) at_once: usize,
    pub(crate) late: usize,
    pub(crate) seed: u64,
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let races = Races {
        at_once: scale.of(ROUNDS, QUICK_ROUNDS),
        late: scale.of(LATE_KEYS, QUICK_LATE_KEYS).min(LATE_KEYS),
        seed: scale.seed,
    };
    let shapes: [fn(Races) -> Result<bool>; 3] =
        [through_the_layer, through_the_gateway, through_two_gateways];
    let mut holds = true;
    for shape in shapes {
        holds &= shape(races)?;
    }
    Ok(holds)
}

fn through_the_layer(races: Races) -> Result<bool> {
    let scratch = scratch()?;
    let lease = Terms::default().lease;
    let mut holds = true;
    let file = format!("sqlite:{}", scratch.path().join("layer.db").display());
    for (name, store) in [("layer on memory", "memory"), ("layer on SQLite", file.as_str())] {
        let server = service("service", store, HANDLER, lease, None, scratch.path())?;
        let address = server.address("listen")?;
        let subject =
            Subject { name, targets: vec![address], ledger: address, patience: Patience::InFlightOnly };
        // The same ledger serves both stores; each has keys of its own.
        holds &= report(&subject, Races { seed: races.seed ^ u64::from(store == "memory"), ..races })?;
        server.stop()?;
    }
    Ok(holds)
}

fn through_the_gateway(races: Races) -> Result<bool> {
    let scratch = scratch()?;
    let shop = shop(&ShopTerms::working(HANDLER), scratch.path())?;
    let upstream = shop.address("listen")?;
    let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
    let server = gateway("gateway", upstream, &Terms::default(), &store, None, scratch.path())?;
    let subject = Subject {
        name: "gateway on SQLite",
        targets: vec![server.address(GATEWAY)?],
        ledger: upstream,
        patience: Patience::InFlightOnly,
    };
    let holds = report(&subject, races)?;
    server.stop()?;
    shop.stop()?;
    Ok(holds)
}

fn through_two_gateways(races: Races) -> Result<bool> {
    let scratch = scratch()?;
    let shop = shop(&ShopTerms::working(HANDLER), scratch.path())?;
    let upstream = shop.address("listen")?;
    let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
    let start = |name| gateway(name, upstream, &Terms::default(), &store, None, scratch.path());
    let servers: Vec<Server> = vec![start("gateway-one")?, start("gateway-two")?];
    let targets = servers.iter().map(|server| server.address(GATEWAY)).collect::<Result<_>>()?;
    let subject =
        Subject { name: "two gateways on one file", targets, ledger: upstream, patience: Patience::BusyFile };
    let holds = report(&subject, races)?;
    for server in servers {
        server.stop()?;
    }
    shop.stop()?;
    Ok(holds)
}

fn report(subject: &Subject, races: Races) -> Result<bool> {
    let verdict = race(subject, races)?;
    let kinds = verdict.kinds;
    println!(
        "{}: {} races of {AT_ONCE} at once and {} of {LATE_REQUESTS} over {} ms: {} ledger entries for {} keys; \
         {} first answers and replays, {} in flight, {} busy",
        subject.name,
        races.at_once,
        races.late,
        LATE_SPREAD.as_millis(),
        verdict.effects,
        races.at_once + races.late,
        kinds.success,
        kinds.in_flight,
        kinds.busy,
    );
    for (violation, count) in verdict.violations() {
        println!("  VIOLATED {count} times: {violation}");
    }
    Ok(verdict.holds())
}

/// Runs both races and judges them.
///
/// # Errors
/// The servers cannot be reached at all.
pub(crate) fn race(subject: &Subject, races: Races) -> Result<Verdict> {
    let all = collect(subject.name, &subject.targets, "/orders", races)?;
    let ledger = effects(subject.ledger)?;
    let mut verdict = Verdict::default();
    for (key, outcomes) in &all {
        let ids = ledger.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        verdict.effects += ids.len();
        verdict.add(judge(outcomes, ids, subject.patience));
    }
    Ok(verdict)
}

/// Runs both races on `path` of the targets, in turn; all answers, by key.
///
/// # Errors
/// As [`race`].
pub(crate) fn collect(
    name: &str,
    targets: &[SocketAddr],
    path: &str,
    races: Races,
) -> Result<Vec<(Key, Vec<Outcome>)>> {
    let headers = [("authorization", "Bearer racer")];
    let mut all: Vec<(Key, Vec<Outcome>)> = Vec::with_capacity(races.at_once + races.late);
    let progress = Progress::new(name, races.at_once + races.late);
    let mut racers = Racers::new(targets, AT_ONCE, path, &headers, BODY);
    for round in 0..races.at_once {
        let key = Key::numbered(races.seed, round as u64);
        all.push((key, racers.at_once(&key)?));
        progress.step();
    }
    let mut racers = Racers::new(targets, LATE_REQUESTS, path, &headers, BODY);
    for round in 0..races.late {
        let key = Key::numbered(races.seed, (1 << 32) + round as u64);
        all.push((key, racers.late(&key, LATE_SPREAD)?));
        progress.step();
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ledger::Ledger;
    use crate::origin::{Guard, router};

    /// The origin in this process, on a runtime of its own.
    fn origin(guard: Guard) -> Subject {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                send.send(listener.local_addr().expect("an address")).expect("the test waits");
                let app = router(guard, HANDLER, Arc::new(Ledger::in_memory()));
                axum::serve(listener, app).await.expect("serves");
            });
        });
        let address = receive.recv().expect("the server starts");
        Subject { name: "origin", targets: vec![address], ledger: address, patience: Patience::InFlightOnly }
    }

    fn violations(guard: Guard) -> Vec<String> {
        let races = Races { at_once: 5, late: 10, seed: 1 };
        let verdict = race(&origin(guard), races).expect("the server answers");
        verdict.violations().map(|(text, _)| text.to_owned()).collect()
    }

    #[test]
    fn a_sound_server_passes() {
        assert_eq!(violations(Guard::Sound), Vec::<String>::new());
    }

    #[test]
    fn no_keys_at_all_fails() {
        assert!(violations(Guard::None).iter().any(|text| text.contains("50 ledger entries")));
    }

    #[test]
    fn a_check_before_the_insert_fails() {
        assert!(violations(Guard::CheckThenInsert).iter().any(|text| text.contains("ledger entries")));
    }

    #[test]
    fn a_claim_given_up_before_its_result_is_there_fails() {
        assert!(violations(Guard::EarlyRelease).iter().any(|text| text.contains("ledger entries")));
    }

    #[test]
    fn a_lock_without_a_stored_answer_fails() {
        assert!(violations(Guard::LockOnly).iter().any(|text| text.contains("ledger entries")));
    }

    #[test]
    fn a_replay_without_its_location_fails() {
        assert!(violations(Guard::LostHeader).contains(&"a replay that differs from the answer".to_owned()));
    }

    #[test]
    fn a_loser_told_500_fails() {
        assert!(violations(Guard::LoserFails).contains(&"an answer 500 (no code)".to_owned()));
    }

    #[test]
    fn a_success_that_is_not_in_the_ledger_fails() {
        assert!(
            violations(Guard::FalseSuccess).contains(&"a success that the ledger does not know".to_owned())
        );
    }
}
