//! Vendor profiles: every file is one, says where it has each fact from, and makes a contract.

#![allow(clippy::unwrap_used)] // helpers fail the test that calls them

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use retrysafe_core::{
    codes::Code,
    contract::{Carrier, Contract, FailurePolicy, Faults, Keep},
    policy::Place,
    profile::Profile,
    retry::RetryPolicy,
};

fn contract(profile: &str, more: &str) -> Result<Contract, Faults> {
    let text = format!(
        "api = \"Shop\"\nnamespace = \"shop\"\nprofile = \"{profile}\"\nlongest_retry_chain = \"2h\"\nunlisted = \"pass\"\n\
         scope = {{ source = \"api_key\", rotates = false }}\n{more}\n\
         [[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"optional\"\n"
    );
    Contract::parse(&text, "retrysafe.toml")
}

fn faults(profile: &str, more: &str) -> String {
    contract(profile, more).unwrap_err().to_string()
}

#[test]
fn every_profile_is_read_and_every_fact_is_about_something() {
    let names: Vec<_> = Profile::all().map(|profile| profile.name).collect();
    assert_eq!(names, Profile::names(), "a file that is no profile is left out");
    for profile in Profile::all() {
        assert!(!profile.title.is_empty() && !profile.methods.is_empty(), "{}", profile.name);
        assert!(profile.facts.iter().any(|fact| fact.source.is_some()), "{}", profile.name);
        for fact in &profile.facts {
            let source = fact.source.as_deref().unwrap_or("not verified");
            assert!(!fact.about.is_empty() && !fact.says.is_empty() && !source.is_empty(), "{fact:?}");
        }
    }
}

#[test]
fn a_profile_guards_or_says_why_it_does_not() {
    for profile in Profile::all() {
        assert_eq!(profile.contract().is_some(), profile.guards(), "{}", profile.name);
        match contract(profile.name, "") {
            Ok(contract) => assert_eq!(contract.profile, Some(profile.name)),
            Err(faults) => {
                assert!(!profile.guards(), "{}: {faults}", profile.name);
                assert!(profile.differences().any(|says| says.contains("guards nothing")));
                let told = faults.to_string().matches("only documents").count();
                assert_eq!(told, 1, "{faults}");
            }
        }
    }
}

#[test]
fn a_name_that_is_none_lists_those_that_are() {
    let faults = faults("stripe", "failures = { policy = \"A\" }");
    assert!(faults.contains("stripe-v1") && faults.contains("retrysafe.toml:3"), "{faults}");
}

#[test]
fn what_the_file_says_itself_stands_above_the_profile() {
    let plain = contract("stripe-v1", "").unwrap();
    let plain = &plain.endpoints[0];
    assert_eq!(plain.windows.replay, Duration::from_secs(24 * 3600));
    assert_eq!(plain.replay_marker.as_deref(), Some("idempotent-replayed"));
    let own = "replay_marker = false\nwindows = { replay = \"48h\" }\nfailures = { policy = \"A\" }\n\
               client = { attempts = 5 }\nanswers = { statuses = { idempotency_key_payload_mismatch = 422 } }";
    let own = contract("stripe-v1", own).unwrap();
    assert_eq!(own.endpoints[0].windows.replay, Duration::from_secs(48 * 3600));
    assert_eq!(own.endpoints[0].replay_marker, None);
    assert_eq!(own.endpoints[0].failures, FailurePolicy::StoreAll);
    assert_eq!((own.client.attempts, own.client.retry_statuses.contains(&409)), (5, true));
    assert_eq!(retrysafe_core::answers::status(&own.answers, Code::PayloadMismatch), 422);
    assert!(own.answers.template.is_some(), "the envelope is still the vendor's");
}

#[test]
fn spec_3_2_a_vendors_window_that_is_too_short_is_a_fault_of_the_line_that_names_it() {
    let text = "api = \"Shop\"\nnamespace = \"shop\"\nlongest_retry_chain = \"72h\"\nprofile = \"paypal\"\n\
                unlisted = \"pass\"\nscope = { source = \"application\" }\n\
                [[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"optional\"\n";
    let faults = Contract::parse(text, "retrysafe.toml").unwrap_err().to_string();
    assert!(
        faults.contains("retrysafe.toml:4") && faults.contains("6h") && faults.contains("72h"),
        "{faults}"
    );
}

/// What the facts say of failures, as the layer keeps them.
#[test]
fn failures_are_kept_as_the_vendors_document_it() {
    let keeps = |profile: &str, status| contract(profile, "").unwrap().endpoints[0].failures.keep(status);
    for (profile, status, keep) in [
        ("stripe-v1", 500, Keep::Window),
        ("stripe-v1", 402, Keep::Window),
        ("stripe-v1", 400, Keep::Release),
        ("stripe-v1", 429, Keep::Release),
        ("stripe-v2", 500, Keep::Release),
        ("square", 402, Keep::Release),
        ("adyen", 422, Keep::Window),
        ("adyen", 429, Keep::Release),
        ("paypal", 429, Keep::Release),
        ("adyen", 503, Keep::Release),
        ("paypal", 500, Keep::Release),
        ("ietf-07", 500, Keep::Window),
    ] {
        assert_eq!(keeps(profile, status), keep, "{profile} {status}");
    }
}

/// A stored 500 is not worth the same key: a client of Stripe v1 does not send it again, one of v2 does.
#[test]
fn a_client_takes_what_is_stored_from_the_same_file() {
    let policy = |name: &str| {
        let contract = Profile::named(name).unwrap().contract().unwrap();
        RetryPolicy::for_endpoint(&contract, &contract.endpoints[0], Place::Library)
    };
    let (first, second) = (policy("stripe-v1"), policy("stripe-v2"));
    assert!(first.stored.contains(500) && !first.statuses.contains(500));
    assert!(!second.stored.contains(500) && second.statuses.contains(500));
    assert!(first.statuses.contains(409) && !first.stored.contains(409));
}

#[test]
fn square_carries_its_key_in_the_body() {
    let contract = contract("square", "").unwrap();
    assert_eq!(contract.endpoints[0].carrier, Carrier::BodyField("/idempotency_key".into()));
    assert_eq!(contract.endpoints[0].key_rules.max_len, 45);
}

/// The page of the vendors says what the files say. `UPDATE=1 cargo test -p retrysafe-core --test profiles` writes it anew.
#[test]
fn the_page_says_what_the_files_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/profiles.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/reference/profiles.md is not what the profiles say; UPDATE=1 writes it anew"
    );
}

fn page() -> String {
    let mut page = String::from(
        "# Vendor profiles\n\n\
         What vendors publish about their keys, printed from `profiles/*.toml`. `profile = \"stripe-v1\"` in a contract makes layer and\n\
         gateway answer as that vendor documents, and the client reads the same file. A fact without a source was not verified.\n",
    );
    for profile in Profile::all() {
        write!(page, "\n## {} (`{}`)\n\nLooked up {}. ", profile.title, profile.name, profile.as_of).unwrap();
        page += if profile.guards() { "Contracts can stand on it.\n" } else { "It documents only.\n" };
        page += "\n| about | published | source |\n|---|---|---|\n";
        for fact in &profile.facts {
            let source = fact.source.as_deref().unwrap_or("*not verified*");
            writeln!(page, "| {} | {} | {source} |", fact.about, fact.says).unwrap();
        }
        let differences: Vec<_> = profile.differences().collect();
        if !differences.is_empty() {
            page += "\nOtherwise here:\n\n";
            differences.iter().for_each(|says| writeln!(page, "- {says}.").unwrap());
        }
    }
    page
}
