//! What an outage does to the world of the model.

use super::*;
use crate::simulate::cases;

fn scenario() -> Scenario {
    Scenario {
        instances: 20,
        rate: 10.0,
        duration: Duration::from_secs(30),
        server: Spec {
            workers: 30,
            service: Duration::from_millis(100),
            queue: 600,
            drops_abandoned: false,
            failure_rate: 0.0,
            lost_answers: 0.0,
            keyed: false,
        },
        hop: Duration::from_millis(2),
        timeout: Duration::from_secs(1),
        outage: Some(Outage {
            fault: Fault::Error,
            at: Duration::from_secs(10),
            length: Duration::from_secs(10),
        }),
        seed: 1,
    }
}

fn case(line: &str) -> Case {
    let base = Case {
        name: String::new(),
        sender: cases::sender("retrysafe").unwrap(),
        rules: cases::rules("none").unwrap(),
        key: Key::Ignored,
        layers: 1,
    };
    Case::read(line, &base).unwrap()
}

fn tally(scenario: &Scenario, line: &str) -> Tally {
    run(scenario, &case(line), |_| {})
}

#[test]
fn the_same_seed_is_the_same_run() {
    let (scenario, line) = (scenario(), "budget=fleet,layers=2");
    assert_eq!(tally(&scenario, line), tally(&scenario, line));
    let other = Scenario { seed: 2, ..scenario };
    assert_ne!(tally(&scenario, line), tally(&other, line));
}

/// Two cases of one seed meet the same calls, or the comparison says nothing.
#[test]
fn every_case_meets_the_same_calls() {
    let scenario = scenario();
    let calls = |line| tally(&scenario, line).bins.iter().map(|bin| bin.calls).collect::<Vec<_>>();
    let (plain, layered) = (calls("budget=none"), calls("budget=fleet,layers=3,key=honoured"));
    assert_eq!(plain[..30], layered[..30]);
}

#[test]
fn without_a_fault_nothing_is_sent_twice() {
    let scenario = Scenario { outage: None, ..scenario() };
    let tally = tally(&scenario, "budget=none");
    assert_eq!(tally.sum(|bin| bin.attempts), tally.sum(|bin| bin.calls));
    assert_eq!((tally.ends.done, tally.sum(|bin| bin.duplicates)), (tally.sum(|bin| bin.calls), 0));
}

/// In an outage each layer multiplies: three attempts, then nine.
#[test]
fn an_outage_multiplies_by_the_attempts_of_every_layer() {
    let scenario = scenario();
    for (layers, load) in [(1, 3.0), (2, 9.0)] {
        let found = tally(&scenario, &format!("layers={layers}")).load_max(5);
        assert!((found / load - 1.0).abs() < 0.1, "{layers} layers: {found}");
    }
    assert!(tally(&scenario, "budget=fleet").load_max(10) <= 1.25);
}

/// What is lost after its effect and sent again is a second effect, unless there is a key; and without a key who is
/// careful does not know what happened.
#[test]
fn lost_answers_double_without_a_key_and_not_with_one() {
    let server = Spec { lost_answers: 0.1, ..scenario().server };
    let scenario = Scenario { outage: None, server, ..scenario() };
    let [ignored, absent, honoured] =
        ["ignored", "absent", "honoured"].map(|key| tally(&scenario, &format!("key={key}")));
    assert!(ignored.sum(|bin| bin.duplicates) > 300);
    assert_eq!(absent.sum(|bin| bin.duplicates) + honoured.sum(|bin| bin.duplicates), 0);
    assert!(absent.ends.unknown > 300 && honoured.ends.unknown == 0);
    assert!(honoured.sum(|bin| bin.replays) > 300);
}

/// A second attempt while the first is queued or running is turned away.
#[test]
fn a_slow_server_answers_in_flight() {
    let outage = scenario().outage.map(|outage| Outage { fault: Fault::Slow, ..outage });
    let scenario = Scenario { outage, ..scenario() };
    let tally = tally(&scenario, "key=honoured,budget=fleet");
    assert!(tally.sum(|bin| bin.conflicts) > 0 && tally.sum(|bin| bin.duplicates) == 0);
}

/// With a queue that is longer than a timeout, retries of timed-out calls fill it with work that nobody waits for,
/// and the server does not come back. A budget lets it.
#[test]
fn an_overload_keeps_itself_alive_without_a_budget() {
    let outage = scenario().outage.map(|outage| Outage {
        fault: Fault::Hang,
        length: Duration::from_secs(5),
        ..outage
    });
    let scenario = Scenario { outage, duration: Duration::from_secs(60), ..scenario() };
    let end = outage.unwrap().end();
    assert_eq!(tally(&scenario, "sender=immediate").recovered(end), None);
    assert!(tally(&scenario, "sender=immediate,budget=fleet").recovered(end).is_some());
}
