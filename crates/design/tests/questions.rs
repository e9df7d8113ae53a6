//! For each question: an answer changes the result as the specification says, and whatever is answered, the contract can be kept.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

use std::collections::BTreeSet;

use retrysafe_core::{
    contract::{ClaimMethod, Contract, Offered, Severity},
    policy,
};
use retrysafe_design::{
    Answers, Callers, Effort, Failures, Horizon, Identity, Interface, Place, Plan, Service, StoreKind,
    contract, difference, rank, record,
};

const CASES: &str = include_str!("data/questions.toml");

fn base() -> toml::Table {
    let file: toml::Table = CASES.parse().unwrap();
    file["base"].as_table().unwrap().clone()
}

fn answers(table: &toml::Table) -> Answers {
    Answers::parse(&toml::to_string(table).unwrap()).unwrap()
}

fn written(answers: &Answers) -> String {
    let plan = Plan::of(answers);
    contract(answers, &plan) + &record(answers, &plan)
}

#[test]
fn each_answer_changes_the_result_as_the_specification_says() {
    let file: toml::Table = CASES.parse().unwrap();
    let before = answers(&base());
    let mut asked = BTreeSet::new();
    for case in file["case"].as_array().unwrap() {
        let what = case["what"].as_str().unwrap();
        let mut changed = base();
        changed.extend(case["set"].as_table().unwrap().clone());
        let after = answers(&changed);
        let (old, new) = (written(&before), written(&after));
        let words = |key: &str| {
            let list = case.get(key).and_then(toml::Value::as_array).cloned().unwrap_or_default();
            list.iter().map(|one| one.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (holds, lacks) = (words("holds"), words("lacks"));
        for word in &holds {
            assert!(new.contains(word), "{what}: {word:?} is not in\n{new}");
        }
        for word in &lacks {
            assert!(!new.contains(word), "{what}: {word:?} is in\n{new}");
        }
        let otherwise =
            holds.iter().any(|word| !old.contains(word)) || lacks.iter().any(|word| old.contains(word));
        assert!(otherwise, "{what}: it was so before");
        assert!(!difference(&before, &after).is_empty(), "{what}: no difference is shown");
        asked.insert(case["question"].as_integer().unwrap());
    }
    assert_eq!(asked, (1..=7).collect());
}

/// Every combination of answers, of which some are pointless: what is written is read, can be kept, and removes are not ranked.
#[test]
fn whatever_is_answered_the_contract_passes_its_check() {
    let mut one = answers(&base());
    let mut seen = 0;
    for &(store, ..) in StoreKind::ALL {
        for &(horizon, ..) in Horizon::ALL {
            for &(effort_ceiling, ..) in Effort::ALL {
                for &(service, ..) in Service::ALL {
                    for &(identity, ..) in Identity::ALL {
                        for flags in 0..32_u8 {
                            let flag = |bit: u8| flags & (1 << bit) != 0;
                            one = Answers {
                                store,
                                horizon,
                                effort_ceiling,
                                service,
                                identity,
                                irreversible_calls: flag(0),
                                schema_migration: flag(1),
                                isolation_migration: flag(2),
                                serializable_today: flag(3),
                                failures: if flag(4) { Failures::A } else { Failures::B },
                                ..one
                            };
                            can_be_kept(&one);
                            seen += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen, 3 * 3 * 3 * 2 * 4 * 32);
    for &(interface, ..) in Interface::ALL {
        for &(callers, ..) in Callers::ALL {
            one = Answers { interface, callers, ..one };
            can_be_kept(&one);
        }
    }
}

fn can_be_kept(answers: &Answers) {
    let plan = Plan::of(answers);
    let text = contract(answers, &plan);
    let read = Contract::parse(&text, "retrysafe.toml")
        .unwrap_or_else(|faults| panic!("{answers:?}\n{text}\n{faults}"));
    let offered = match plan.place {
        Place::Library => Offered::postgres(policy::Place::Library),
        Place::Gateway => Offered::sqlite(policy::Place::Gateway),
    };
    let errors: Vec<_> =
        read.check(&offered).into_iter().filter(|one| one.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{answers:?}\n{text}\n{errors:?}");
    let methods: BTreeSet<&str> = plan.ranking.ranked.iter().map(|one| one.method.as_str()).collect();
    let removed: BTreeSet<&str> = plan.ranking.removed.iter().map(|one| one.method.as_str()).collect();
    assert!(methods.is_disjoint(&removed) && methods.len() + removed.len() == 3, "removal is never demotion");
    assert!(plan.ranking.removed.iter().all(|one| !one.why.is_empty()));
    assert!(!record(answers, &plan).contains(concat!("exact", "ly once")));
}

/// SPEC 4.2, before any answer moves it.
#[test]
fn the_default_ranks_are_those_of_the_specification() {
    let mut table = base();
    table.insert("horizon".into(), "contract".into());
    let ranking = rank(&answers(&table));
    let by = |method: ClaimMethod| ranking.ranked.iter().find(|one| one.method == method).unwrap();
    let (serializable, unique, conditional) =
        (by(ClaimMethod::Serializable), by(ClaimMethod::Unique), by(ClaimMethod::Conditional));
    assert!(serializable.value > unique.value && unique.value == conditional.value);
    assert!(serializable.effort > conditional.effort && conditional.effort > unique.effort);
    assert!(unique.efficiency > conditional.efficiency && conditional.efficiency > serializable.efficiency);
}

#[test]
fn answers_that_are_none_are_refused_by_name() {
    for (field, value, said) in [
        ("endpoints", toml::Value::Array(vec!["orders".into()]), "no operation"),
        ("endpoints", toml::Value::Array(vec!["POST /a maybe".into()]), "no operation"),
        ("endpoints", toml::Value::Array(vec![]), "at least one"),
        ("longest_retry_chain", "soon".into(), "longest_retry_chain"),
        ("store", "tape".into(), "tape"),
        ("api", "a\"b".into(), "api"),
    ] {
        let mut table = base();
        table.insert(field.into(), value);
        let error = Answers::parse(&toml::to_string(&table).unwrap()).unwrap_err();
        assert!(error.contains(said), "{field}: {error}");
    }
}
