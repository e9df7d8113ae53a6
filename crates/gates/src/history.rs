//! What the requests of one key may have been told, judged by intervals.
//!
//! The specification of one key is tiny: absent, then running for one request, then done with one answer. So no search
//! through orders is needed: a history is possible if and only if some request can have been the one that ran, and then every
//! other answer has a moment inside its own interval at which it was true. Each rule explains itself in a sentence, and the
//! tests compare the verdict with that of a search over all orders.
//!
//! | rule | |
//! |---|---|
//! | H1 | at most one effect, and one where a success was told |
//! | H2 | every success is the same answer |
//! | H3 | no success returns before the effect |
//! | H4 | *in flight* is told while the one that ran may have been running, not before and not after |
//! | H5 | once a success was told, whoever asks later is told it too, until the window ends |
//! | H6 | *mismatch* is told to other requests, and never to this one; other requests are told no success |
//! | H7 | who got no answer, or 5xx, may have caused the effect: that is no evidence that nothing happened |
//! | H8 | after the window a key begins anew |

use std::time::Duration;

use crate::told::Told;

/// One request under the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its first byte left.
    pub invoked: Duration,
    /// Its answer was complete, or it was given up.
    pub returned: Duration,
    /// What it was told.
    pub told: Told,
    /// Which request: equal for equal fingerprints.
    pub variant: usize,
    /// Which answer: equal for successes that do not differ.
    pub answer: usize,
}

/// What an observer counted for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// How many.
    pub count: u64,
    /// When the first one happened, where the observer knows and the effect belongs to the answer.
    pub first_at: Option<Duration>,
}

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[expect(missing_docs, reason = "the table above says what they mean")]
pub enum Rule {
    H1,
    H2,
    H3,
    H4,
    H5,
    H6,
}

/// One breach, with the events that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which rule.
    pub rule: Rule,
    /// What happened.
    pub what: String,
    /// Places in the history.
    pub events: Vec<usize>,
}

/// Everything that is wrong with the history of one key. `window`: after this time from the first success a key begins
/// anew (H8).
#[must_use]
pub fn check(events: &[Event], effects: Option<Effects>, window: Option<Duration>) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut rest: Vec<usize> = (0..events.len()).collect();
    rest.sort_by_key(|&at| events.get(at).map(|event| event.invoked));
    // Each window is judged alone (H8). Effects are only known for all of them.
    let mut windows = 0_u64;
    while !rest.is_empty() {
        let ends = window.and_then(|window| {
            let done = rest.iter().filter_map(|&at| success(events, at)).map(|event| event.returned).min()?;
            Some(done + window)
        });
        let later =
            |at: &usize| ends.is_some_and(|ends| events.get(*at).is_some_and(|event| event.invoked >= ends));
        let (next, now): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(later);
        windows += 1;
        one_window(
            events,
            &now,
            effects.filter(|_| windows == 1).and_then(|effects| effects.first_at),
            &mut breaches,
        );
        rest = next;
    }
    if let Some(effects) = effects {
        count(events, effects, windows.max(1), &mut breaches);
    }
    breaches.sort_by_key(|breach| breach.rule);
    breaches
}

fn success(events: &[Event], at: usize) -> Option<&Event> {
    events.get(at).filter(|event| event.told == Told::Success)
}

/// H1.
fn count(events: &[Event], effects: Effects, windows: u64, breaches: &mut Vec<Breach>) {
    let told: Vec<usize> = (0..events.len()).filter(|&at| success(events, at).is_some()).collect();
    if effects.count > windows {
        let what = format!("{} effects for one key", effects.count);
        breaches.push(Breach { rule: Rule::H1, what, events: told });
    } else if effects.count == 0 && !told.is_empty() {
        breaches.push(Breach {
            rule: Rule::H1,
            what: "a success was told and there is no effect".to_owned(),
            events: told,
        });
    }
}

/// H2 to H6, for requests of one window.
fn one_window(events: &[Event], places: &[usize], effect_at: Option<Duration>, breaches: &mut Vec<Breach>) {
    let all = || places.iter().filter_map(|&at| events.get(at).map(|event| (at, event)));
    let first =
        all().filter(|(_, event)| event.told == Told::Success).min_by_key(|(_, event)| event.returned);
    // The request that ran: that of the successes, else unknown.
    let ran = first.map(|(_, event)| event.variant);
    // It may have begun as soon as the first request that can be it was sent (H7: the lost can be it).
    let can_have_run = |event: &Event| match ran {
        Some(variant) => event.variant == variant && (event.told == Told::Success || event.told.is_unknown()),
        None => event.told.is_unknown(),
    };
    let began = all().filter(|(_, event)| can_have_run(event)).map(|(_, event)| event.invoked).min();
    let done = first.map(|(_, event)| event.returned);
    let mut note = |rule, what: String, events: Vec<usize>| breaches.push(Breach { rule, what, events });
    for (at, event) in all() {
        let later = done.is_some_and(|done| event.invoked > done);
        let same = ran == Some(event.variant);
        match event.told {
            Told::Success => {
                let Some((winner, first)) = first else { continue };
                if !same {
                    let how = if event.answer == first.answer {
                        "the replay of"
                    } else {
                        "a success beside that of"
                    };
                    note(Rule::H6, format!("another request was told {how} this one"), vec![winner, at]);
                } else if event.answer != first.answer {
                    note(Rule::H2, "two successes that differ".to_owned(), vec![winner, at]);
                }
                if same && effect_at.is_some_and(|effect| event.returned < effect) {
                    note(Rule::H3, "a success was told before the effect".to_owned(), vec![at]);
                }
            }
            Told::Conflict { mismatch, in_flight } => {
                let about_another = mismatch && ran.is_some() && !same;
                if !in_flight && same {
                    note(Rule::H6, "this request was told that it is another one".to_owned(), vec![at]);
                }
                if about_another || !in_flight {
                    let others =
                        all().filter(|(_, other)| can_have_run(other) && other.variant != event.variant);
                    let began = others.map(|(_, other)| other.invoked).min();
                    if (in_flight || !same) && began.is_none_or(|began| event.returned < began) {
                        note(
                            Rule::H6,
                            "a mismatch was told, and there was nothing to differ from".to_owned(),
                            vec![at],
                        );
                    }
                    continue;
                }
                if began.is_none_or(|began| event.returned < began) {
                    note(
                        Rule::H4,
                        "in flight was told, and nothing can have been running".to_owned(),
                        vec![at],
                    );
                } else if later {
                    note(
                        Rule::H4,
                        "in flight was told after a success: the key is stuck or was lost".to_owned(),
                        vec![at],
                    );
                }
            }
            Told::Refused(status) | Told::Failed(status) if later && same => {
                note(Rule::H5, format!("{status} was told after a success of the same request"), vec![at]);
            }
            Told::Refused(_) | Told::Failed(_) | Told::NotNow | Told::Lost => {}
        }
    }
}

#[cfg(test)]
mod tests;
