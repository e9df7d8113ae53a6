//! The questions at a terminal: arrow keys for choices, a line for the rest; every default with its reason.

use dialoguer::{Input, Select, theme::ColorfulTheme};
use retrysafe_design::{
    Callers, Effort, Failures, Horizon, Identity, Interface, QUESTIONS, Question, Service, StoreKind,
};

use super::value_of;
use crate::failure::Failure;

/// Prints every question, with its answers and what is assumed.
pub(super) fn list() {
    for question in QUESTIONS {
        let number = question.number.map_or("  ".to_owned(), |number| format!("{number}."));
        anstream::println!("{number} {}: {}", question.field, question.asks);
        for (word, says) in choices(question.field) {
            anstream::println!("     {word}: {says}");
        }
        match question.default {
            Some((value, why)) => {
                anstream::println!("     assumed: {} ({why})", if value.is_empty() { "none" } else { value })
            }
            None => anstream::println!("     only you know"),
        }
    }
}

/// Asks what has no answer yet.
pub(super) fn all(table: &mut toml::Table) -> Result<(), Failure> {
    let theme = ColorfulTheme::default();
    for question in QUESTIONS {
        if !table.contains_key(question.field) {
            let word = one(question, &theme).map_err(|error| {
                Failure::usage(format!("the question {} was not answered: {error}", question.field))
            })?;
            table.insert(question.field.to_owned(), value_of(question.field, &word));
        }
    }
    Ok(())
}

fn one(question: &Question, theme: &ColorfulTheme) -> dialoguer::Result<String> {
    let choices = choices(question.field);
    let prompt = match question.default {
        Some((value, why)) if !value.is_empty() => format!("{} ({value}: {why})", question.asks),
        _ => question.asks.to_owned(),
    };
    if choices.is_empty() {
        let mut input = Input::<String>::with_theme(theme).with_prompt(prompt);
        if let Some((value, _)) = question.default {
            input = input.default(value.to_owned()).allow_empty(true);
        }
        return input.interact_text();
    }
    let shown: Vec<String> = choices.iter().map(|(word, says)| format!("{word}: {says}")).collect();
    let default = question.default.and_then(|(value, _)| choices.iter().position(|(word, _)| *word == value));
    let chosen = Select::with_theme(theme)
        .with_prompt(prompt)
        .items(&shown)
        .default(default.unwrap_or(0))
        .interact()?;
    Ok(choices[chosen].0.to_owned())
}

/// The words that a field may have, and what they mean; none where anything may be written.
fn choices(field: &str) -> Vec<(&'static str, &'static str)> {
    fn of<T>(all: &'static [(T, &'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        all.iter().map(|(_, word, says)| (*word, *says)).collect()
    }
    match field {
        "interface" => of(Interface::ALL),
        "store" => of(StoreKind::ALL),
        "horizon" => of(Horizon::ALL),
        "effort_ceiling" => of(Effort::ALL),
        "callers" => of(Callers::ALL),
        "service" => of(Service::ALL),
        "identity" => of(Identity::ALL),
        "failures" => of(Failures::ALL),
        "irreversible_calls"
        | "raw_http"
        | "schema_migration"
        | "isolation_migration"
        | "serializable_today" => {
            vec![("true", "yes"), ("false", "no")]
        }
        _ => Vec::new(),
    }
}
