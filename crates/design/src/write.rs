//! The contract and the decision record, as text.

use std::fmt::Write as _;

use retrysafe_core::contract::show;

use crate::{
    answers::{Answers, Failures, Horizon, Identity, QUESTIONS},
    plan::{Place, Plan},
    rank::name,
};

/// `retrysafe.toml`: complete, and accepted by `retrysafe check`.
pub fn contract(answers: &Answers, plan: &Plan) -> String {
    let mut text = String::from(
        "# Written by `retrysafe design`; every field is explained in docs/reference/contract.md.\n\n",
    );
    let unlisted = if answers.horizon == Horizon::Contract { "refuse" } else { "pass" };
    let _ = writeln!(text, "api = \"{}\"", answers.api);
    let _ = writeln!(text, "version = 1");
    let _ = writeln!(text, "namespace = \"{}\"", namespace(&answers.api, plan.place));
    let _ = writeln!(text, "longest_retry_chain = \"{}\"", answers.longest_retry_chain);
    let _ = writeln!(text, "unlisted = \"{unlisted}\"");
    let _ = writeln!(text, "claim = \"{}\"", plan.claim.as_str());
    let _ = writeln!(text, "recovery = \"{}\"", plan.recovery.as_str());
    let _ =
        writeln!(text, "windows = {{ replay = \"{}\", reap = \"{}\" }}", show(plan.replay), show(plan.reap));
    text.push_str("\n# Whose key it is: verified, and the same over all retries.\n");
    text.push_str(match answers.identity {
        Identity::ApiKey => "scope = { source = \"api_key\", rotates = false }\n",
        Identity::Jwt => {
            "scope = { source = \"jwt\", claims = [\"sub\"], algorithms = [\"ES256\"], jwks_file = \"jwks.json\" }\n"
        }
        Identity::Application if plan.place == Place::Library => "scope = { source = \"application\" }\n",
        // In front of the application nobody has been recognised yet.
        Identity::Application | Identity::Anonymous => "scope = { source = \"anonymous\" }\n",
    });
    text.push_str(match answers.failures {
        Failures::A => "\nfailures = { policy = \"A\" }\n",
        // A 500 may have left something behind: somebody has to look before it is run again.
        Failures::B => "\nfailures = { policy = \"B\", keep = { 500 = \"uncertain\" } }\n",
    });
    let mut client = Vec::new();
    if answers.failures == Failures::A {
        client.push("drop_stored_statuses = true".to_owned());
    }
    if let Some(header) = plan.deadline_header {
        client.push(format!("deadline_header = \"{header}\""));
    }
    if !client.is_empty() {
        let _ = writeln!(text, "client = {{ {} }}", client.join(", "));
    }
    for endpoint in &answers.endpoints {
        let mut parts = endpoint.split(' ');
        let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let key = parts.next().unwrap_or("required");
        let _ = writeln!(text, "\n[[endpoint]]\nmethod = \"{method}\"\npath = \"{path}\"\nkey = \"{key}\"");
    }
    text
}

/// `Sample shop` at a gateway is `sample-shop-gateway`: nested hops have namespaces of their own.
fn namespace(api: &str, place: Place) -> String {
    let plain: String = api
        .to_lowercase()
        .chars()
        .map(|one| if one.is_ascii_alphanumeric() { one } else { '-' })
        .take(48)
        .collect();
    let plain = plain.trim_matches('-');
    let plain = if plain.is_empty() { "api" } else { plain };
    match place {
        Place::Library => plain.to_owned(),
        Place::Gateway => format!("{plain}-gateway"),
    }
}

/// The decision, its reasons and what it gives up, in Markdown.
pub fn record(answers: &Answers, plan: &Plan) -> String {
    let mut page = format!("# How {} makes writes safe to retry\n\n## Decision\n\n", answers.api);
    let place = match plan.place {
        Place::Library => "in the service",
        Place::Gateway => "at a gateway in front of the service",
    };
    let _ = writeln!(
        page,
        "Keys are claimed by **{}**, enforced {place}, in {}. Recovery is `{}`, failures follow policy {}, and answers are replayed for {}, effectively once within that window and the account's scope.\n",
        name(plan.claim),
        plan.store,
        plan.recovery.as_str(),
        answers.failures.as_str(),
        show(plan.replay)
    );
    page.push_str("## Reasons, by question\n\n");
    for reason in &plan.reasons {
        let _ = writeln!(page, "- {reason}");
    }
    page.push_str("\n## Ways to claim a key\n\n");
    page.push_str(&ranking(plan));
    if !plan.lost.is_empty() {
        page.push_str("\n## What this gives up\n\n");
        for lost in &plan.lost {
            let _ = writeln!(page, "- {lost}");
        }
    }
    page.push_str("\n## Next\n\n");
    for (number, next) in plan.next.iter().enumerate() {
        let _ = writeln!(page, "{}. {next}", number + 1);
    }
    page.push_str("\n## Answers\n\n| | question | answer |\n|---|---|---|\n");
    for question in QUESTIONS {
        let number = question.number.map(|number| number.to_string()).unwrap_or_default();
        let _ = writeln!(page, "| {number} | {} | {} |", question.asks, answer(answers, question.field));
    }
    page.push_str("\nTo argue with it: change an answer and run `retrysafe design --answers FILE --set FIELD=VALUE`; the difference is printed.\n");
    page
}

/// The ranking as a table, ties as ties, and what is not in it.
pub(crate) fn ranking(plan: &Plan) -> String {
    let mut text = String::from("| place | method | value | effort | efficiency |\n|---|---|---|---|---|\n");
    let ranked = &plan.ranking.ranked;
    for one in ranked {
        let tie = ranked.iter().filter(|other| other.place == one.place).count() > 1;
        let _ = writeln!(
            text,
            "| {}{} | {} | {} | {} | {} |",
            if tie { "== " } else { "" },
            one.place,
            name(one.method),
            word(one.value),
            word(one.effort),
            word(one.efficiency)
        );
    }
    if ranked.is_empty() {
        text = String::from("None is left in the service's own store.\n");
    }
    if !plan.ranking.removed.is_empty() {
        text.push_str("\nRemoved (an option that cannot be reached is none):\n\n");
        for removed in &plan.ranking.removed {
            let _ = writeln!(text, "- {}: {}", name(removed.method), removed.why);
        }
    }
    if !plan.ranking.moved.is_empty() {
        text.push_str("\nHow the answers moved it:\n\n");
        for moved in &plan.ranking.moved {
            let _ = writeln!(text, "- {moved}");
        }
    }
    text
}

fn word(rank: u8) -> &'static str {
    match rank {
        1 => "low",
        2 => "medium",
        _ => "high",
    }
}

/// One answer, as a file spells it.
fn answer(answers: &Answers, field: &str) -> String {
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    match field {
        "api" => answers.api.clone(),
        "interface" => answers.interface.as_str().to_owned(),
        "endpoints" => answers.endpoints.join(", "),
        "store" => answers.store.as_str().to_owned(),
        "irreversible_calls" => yes(answers.irreversible_calls),
        "sdk_languages" => answers.sdk_languages.join(", "),
        "raw_http" => yes(answers.raw_http),
        "longest_retry_chain" => answers.longest_retry_chain.clone(),
        "horizon" => answers.horizon.as_str().to_owned(),
        "effort_ceiling" => answers.effort_ceiling.as_str().to_owned(),
        "schema_migration" => yes(answers.schema_migration),
        "isolation_migration" => yes(answers.isolation_migration),
        "serializable_today" => yes(answers.serializable_today),
        "callers" => answers.callers.as_str().to_owned(),
        "service" => answers.service.as_str().to_owned(),
        "identity" => answers.identity.as_str().to_owned(),
        "failures" => answers.failures.as_str().to_owned(),
        _ => String::new(),
    }
}
