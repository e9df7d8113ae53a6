//! `[failures]`: what is stored when a request fails (SPEC 6.1, 6.2).
//!
//! Under policy B the user's entries come before the defaults, and the narrower of two nested ranges comes first: `402`
//! is an exception from `4xx`, wherever it stands in the file.

use std::time::Duration;

use super::{
    fields,
    model::{FailureClass, FailurePolicy, Keep},
    section::{Item, Section},
    values,
};

/// SPEC 6.2. 500 is not here: it is the user's choice.
const DEFAULTS: [(&[(u16, u16)], Keep); 5] = [
    (&[(400, 400), (422, 422)], Keep::Window),
    (&[(402, 402), (409, 409)], Keep::For(Duration::from_secs(3600))),
    (&[(401, 401), (403, 403)], Keep::For(Duration::from_secs(60))),
    (&[(429, 429)], Keep::Release),
    (&[(502, 504)], Keep::Release),
];

pub(super) fn read(item: &Item<'_>) -> Option<FailurePolicy> {
    let kinds: [(&'static str, &'static [&'static str]); 2] =
        [("A", fields::FAILURES_A), ("B", fields::FAILURES_B)];
    let why = "\"A\" stores the first result whatever it is; \"B\" lets transient failures be tried again with the same key";
    let (policy, section) = item.section_by("policy", &kinds, why)?;
    if policy == "A" {
        return Some(FailurePolicy::StoreAll);
    }
    let mut classes = section.get("keep").map(|item| user_classes(&item)).unwrap_or_default();
    if !classes.iter().any(|class| holds(class, 500)) {
        section.missing(
            "keep.500",
            "whether a 500 may be tried again depends on what it left behind",
            "write keep = { 500 = \"uncertain\" } (look it up), \"window\" (replay it) or \"release\" (run it again)",
        );
    }
    classes.extend(DEFAULTS.map(|(statuses, keep)| FailureClass { statuses: statuses.to_vec(), keep }));
    Some(FailurePolicy::ByClass(classes))
}

fn user_classes(item: &Item<'_>) -> Vec<FailureClass> {
    let mut ranges: Vec<((u16, u16), Keep)> = Vec::new();
    for (name, at, value) in Section::entries(item) {
        let range = match values::status_range(name) {
            Ok(range) => range,
            Err((message, help)) => {
                value.fault_at(at, message, help);
                continue;
            }
        };
        if range.0 < 400 {
            let message = format!("{name} is no failure");
            value.fault_at(at, message, "leave it out: results below 400 are stored for the window");
            continue;
        }
        if let Some((other, _)) = ranges.iter().find(|(other, _)| crosses(*other, range)) {
            let message = format!("{name} and {}-{} overlap", other.0, other.1);
            value.fault_at(at, message, "make one a part of the other, or keep them apart");
            continue;
        }
        ranges.extend(keep(&value).map(|keep| (range, keep)));
    }
    ranges.sort_by_key(|((from, to), _)| (to - from, *from));
    ranges.into_iter().map(|(range, keep)| FailureClass { statuses: vec![range], keep }).collect()
}

fn keep(value: &Item<'_>) -> Option<Keep> {
    value.text(|text| match text {
        "window" => Ok(Keep::Window),
        "release" => Ok(Keep::Release),
        "uncertain" => Ok(Keep::Uncertain),
        text => match values::duration(text) {
            Ok(time) if !time.is_zero() => Ok(Keep::For(time)),
            _ => Err((
                format!("{text:?} does not say how long a failure is kept"),
                "write \"window\", a time (\"1h\"), \"release\" or \"uncertain\"".to_owned(),
            )),
        },
    })
}

/// Whether two ranges share statuses and neither is a part of the other, or both are the same.
fn crosses(a: (u16, u16), b: (u16, u16)) -> bool {
    let apart = a.1 < b.0 || b.1 < a.0;
    let within = |inner: (u16, u16), outer: (u16, u16)| inner.0 >= outer.0 && inner.1 <= outer.1;
    !apart && (a == b || !(within(a, b) || within(b, a)))
}

fn holds(class: &FailureClass, status: u16) -> bool {
    class.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status))
}

impl FailurePolicy {
    /// What becomes of `status` when no effect can have happened. Below 400 it is always kept for the window. A 429 says
    /// "come back", which is no result under policy A either (protocol 20).
    pub fn keep(&self, status: u16) -> Keep {
        match self {
            FailurePolicy::ByClass(classes) if status >= 400 => {
                classes.iter().find(|class| holds(class, status)).map_or(Keep::Window, |class| class.keep)
            }
            FailurePolicy::StoreAll if status == 429 => Keep::Release,
            FailurePolicy::StoreAll | FailurePolicy::ByClass(_) => Keep::Window,
        }
    }
}
