//! What a GET shows, and where two of them differ.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::arrive::Lost;
use crate::wire::Answer;

/// Members that say when something was written and not what: they may differ after every write.
const VOLATILE: &[&str] = &[
    "updated_at",
    "updatedAt",
    "modified_at",
    "modifiedAt",
    "last_modified",
    "lastModified",
    "etag",
    "_etag",
    "version",
];
/// Places that are named; more say the same.
const NAMED_MAX: usize = 4;

/// What was there.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// A representation in JSON.
    Json(u16, Value),
    /// Something else.
    Bytes(u16, Vec<u8>),
    /// It could not be read.
    Unread(String),
}

impl State {
    /// From what a GET was told.
    #[must_use]
    pub fn of(outcome: &Result<Answer, Lost>) -> Self {
        match outcome {
            Err(lost) => Self::Unread(lost.0.clone()),
            Ok(answer) if answer.status >= 500 => Self::Unread(format!("it was told {}", answer.status)),
            Ok(answer) => match serde_json::from_slice(&answer.body) {
                Ok(value) => Self::Json(answer.status, value),
                Err(_) => Self::Bytes(answer.status, answer.body.clone()),
            },
        }
    }

    /// Where another state differs, as JSON pointers; members of these names are passed over. Empty: they are the same.
    #[must_use]
    pub fn differences(&self, other: &Self, masked: &BTreeSet<String>) -> Vec<String> {
        match (self, other) {
            (Self::Json(one, a), Self::Json(two, b)) if one == two => {
                let mut places = Vec::new();
                compare(a, b, "", masked, &mut places);
                places
            }
            (Self::Bytes(one, a), Self::Bytes(two, b)) if one == two && a == b => Vec::new(),
            (one, two) if one.status() != two.status() => {
                vec![format!("status {} became {}", one.status(), two.status())]
            }
            _ => vec!["the whole".to_owned()],
        }
    }

    fn status(&self) -> u16 {
        match self {
            Self::Json(status, _) | Self::Bytes(status, _) => *status,
            Self::Unread(_) => 0,
        }
    }
}

fn compare(a: &Value, b: &Value, place: &str, masked: &BTreeSet<String>, places: &mut Vec<String>) {
    if places.len() >= NAMED_MAX {
        return;
    }
    match (a, b) {
        (Value::Object(one), Value::Object(two)) => {
            let names: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            for name in names.into_iter().filter(|name| !masked.contains(*name)) {
                let null = &Value::Null;
                let (one, two) = (one.get(name).unwrap_or(null), two.get(name).unwrap_or(null));
                compare(one, two, &format!("{place}/{name}"), masked, places);
            }
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            for (at, (one, two)) in one.iter().zip(two).enumerate() {
                compare(one, two, &format!("{place}/{at}"), masked, places);
            }
        }
        _ if a == b => {}
        (Value::Array(one), Value::Array(two)) => {
            places.push(format!("{place} has {} members in place of {}", two.len(), one.len()));
        }
        _ => places.push(if place.is_empty() { "the whole".to_owned() } else { place.to_owned() }),
    }
}

/// The names that are passed over: the usual ones, those of the plan, and those that changed with no write in between.
pub(super) fn masks(declared: &[String], before: &[State; 2]) -> (BTreeSet<String>, Vec<String>) {
    let mut masked: BTreeSet<String> = VOLATILE.iter().map(|&name| name.to_owned()).collect();
    masked.extend(declared.iter().cloned());
    let [one, two] = before;
    let learned: Vec<String> = one
        .differences(two, &masked)
        .iter()
        .filter_map(|place| place.rsplit('/').next())
        .map(|name| name.split(' ').next().unwrap_or(name).to_owned())
        .collect();
    masked.extend(learned.iter().cloned());
    (masked, learned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json(value: Value) -> State {
        State::Json(200, value)
    }

    #[test]
    fn differences_have_places_and_masks_have_names() {
        let one = json(json!({ "a": [1, { "b": 2, "etag": "x" }], "updated_at": 1 }));
        let two = json(json!({ "a": [1, { "b": 3, "etag": "y" }], "updated_at": 2 }));
        let none = masks(&[], &[one.clone(), one.clone()]).0;
        assert_eq!(one.differences(&two, &none), ["/a/1/b"]);
        assert_eq!(
            one.differences(&two, &masks(&["b".to_owned()], &[one.clone(), one.clone()]).0),
            Vec::<String>::new()
        );
        let grown = json(json!({ "a": [1, 2, 3] }));
        assert_eq!(json(json!({ "a": [1] })).differences(&grown, &none), ["/a has 3 members in place of 1"]);
        assert_eq!(
            State::Bytes(200, vec![]).differences(&State::Bytes(404, vec![]), &none),
            ["status 200 became 404"]
        );
    }

    #[test]
    fn c38_what_changes_by_being_read_is_learned() {
        let (masked, learned) =
            masks(&[], &[json(json!({ "views": 1, "x": 1 })), json(json!({ "views": 2, "x": 1 }))]);
        assert_eq!(learned, ["views"]);
        assert!(masked.contains("views") && masked.contains("etag") && !masked.contains("x"));
    }
}
