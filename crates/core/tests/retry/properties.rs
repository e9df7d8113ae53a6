//! What holds for every call and every budget, whatever happens.

use std::{num::NonZeroU32, time::Duration};

use proptest::prelude::*;
use retrysafe_core::{
    codes::Code,
    policy::Effect,
    retry::{
        after::Hint,
        budget::{Account, Bucket, Concurrency, Entry, Ratio, Rules},
        *,
    },
};

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn reach() -> impl Strategy<Value = Reach> {
    prop::sample::select(vec![Reach::Nothing, Reach::Head, Reach::Body, Reach::Whole])
}

fn hint() -> impl Strategy<Value = Hint> {
    prop_oneof![
        3 => Just(Hint::None),
        2 => millis(0..4_000).prop_map(Hint::Wait),
        1 => Just(Hint::Wait(Duration::MAX)),
        1 => millis(0..4_000).prop_map(Hint::Pushback),
        1 => Just(Hint::Never),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let status =
        prop_oneof![4 => 400_u16..600, 1 => 200_u16..400, 4 => Just(503), 2 => Just(429), 2 => Just(202)];
    let code = prop_oneof![4 => Just(None), 1 => prop::sample::select(Code::ALL.to_vec()).prop_map(Some)];
    let effect =
        prop::option::weighted(0.2, prop::sample::select(vec![Effect::None, Effect::Done, Effect::Unknown]));
    let advice = prop::option::weighted(0.2, any::<bool>());
    let url = prop::option::weighted(0.3, Just("/status/1"));
    (status, code, effect, advice, hint(), url, prop::bool::weighted(0.1)).prop_map(
        |(status, code, effect, advice, hint, url, cut)| Answer {
            code,
            advice,
            hint,
            status_url: url.map(Into::into),
            effect,
            cut,
            ..Answer::new(status)
        },
    )
}

fn seen() -> impl Strategy<Value = Seen> {
    let not_sent =
        vec![NotSent::Refused, NotSent::ConnectTimeout, NotSent::RefusedStream, NotSent::Certificate];
    let lost = vec![Lost::Timeout, Lost::Reset, Lost::Closed, Lost::Other];
    prop_oneof![
        2 => prop::sample::select(not_sent).prop_map(Seen::not_sent),
        3 => (prop::sample::select(lost), reach()).prop_map(|(how, reach)| Seen::lost(how, reach)),
        6 => answer().prop_map(Seen::answered),
        1 => prop::option::of(millis(0..3_000)).prop_map(|opens_in| Seen {
            outcome: Outcome::Held { opens_in },
            reach: Reach::Nothing
        }),
    ]
}

fn policy() -> impl Strategy<Value = RetryPolicy> {
    let jitter = prop::sample::select(vec![Jitter::Full, Jitter::Decorrelated]);
    let timeout = prop::option::of(millis(1..3_000));
    (1_u32..6, millis(0..10_000), jitter, millis(0..2_000), millis(0..5_000), timeout, any::<bool>())
        .prop_map(|(attempts, elapsed, jitter, base, cap, attempt_timeout, ask)| RetryPolicy {
            attempts: NonZeroU32::new(attempts).unwrap(),
            elapsed,
            backoff: Backoff { jitter, base, throttled_base: base * 4, cap },
            attempt_timeout,
            uncertain: if ask { Uncertain::Ask } else { Uncertain::End },
            ..RetryPolicy::default()
        })
}

fn idempotence() -> impl Strategy<Value = Idempotence> {
    prop::sample::select(vec![Idempotence::Safe, Idempotence::Keyed, Idempotence::Unsafe])
}

/// What the host did, in order.
struct Run {
    sends: Vec<Mono>,
    /// When each attempt was observed, and what.
    observed: Vec<(Mono, Seen)>,
    pauses: Vec<(Mono, Pause)>,
    polls: u32,
    ended: Mono,
    why: Why,
}

/// Runs a call to its end. Each attempt takes the drawn share of its timeout; a lost attempt takes all of it.
fn run(
    policy: &RetryPolicy,
    budget: &Budget,
    request: Request,
    deadline: Deadline,
    events: &[(Seen, u64)],
) -> Run {
    let mut now = Mono::from_nanos(1_000);
    let (mut call, mut step) = Call::open(policy, budget, request, deadline, now);
    let (mut sends, mut observed, mut pauses, mut polls) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut events = events.iter().cycle();
    loop {
        step = match step {
            Step::Send { timeout, .. } | Step::Poll { timeout, .. } => {
                let (seen, entropy) = events.next().unwrap();
                if matches!(step, Step::Send { .. }) {
                    sends.push(now);
                } else {
                    polls += 1;
                }
                let taken = match seen.outcome {
                    Outcome::Lost(Lost::Timeout) => timeout,
                    _ => timeout / 100 * (entropy % 100) as u32,
                };
                now = now.plus(taken);
                if matches!(step, Step::Send { .. }) {
                    observed.push((now, seen.clone()));
                }
                call.observe(seen, *entropy, now)
            }
            Step::Sleep(pause) => {
                pauses.push((now, pause));
                now = now.plus(pause.delay);
                call.woke(now)
            }
            Step::Finish(why) => return Run { sends, observed, pauses, polls, ended: now, why },
        };
    }
}

fn unknown(seen: &Seen) -> bool {
    match &seen.outcome {
        Outcome::Lost(_) => seen.reach > Reach::Nothing,
        Outcome::Answered(answer) => {
            let gateway =
                answer.code.is_none() && matches!(answer.status, 502 | 504) && answer.effect.is_none();
            gateway || answer.code == Some(Code::OutcomeUnknown)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn a_full_jitter_sleep_lies_within_its_bound(
        base in 0_u64..u64::MAX, cap in 0_u64..u64::MAX, retry in 0_u32..1_000_000, entropy in any::<u64>(),
    ) {
        let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
        let backoff = Backoff { jitter: Jitter::Full, base, cap, ..Backoff::default() };
        let grown = base.as_nanos().saturating_mul(2_u128.saturating_pow(retry));
        let bound = grown.min(cap.as_nanos());
        prop_assert!(backoff.delay(Pace::Transient, retry, Duration::ZERO, entropy).as_nanos() <= bound);
        prop_assert_eq!(backoff.bound(Pace::Transient, retry).as_nanos(), bound);
    }

    #[test]
    fn sleeps_and_attempts_stay_within_the_deadline(
        policy in policy(), limit in millis(0..10_000), idempotence in idempotence(),
        events in prop::collection::vec((seen(), any::<u64>()), 1..12),
    ) {
        let start = Mono::from_nanos(1_000);
        let deadline = Deadline::within(start, limit);
        let run = run(&policy, &Budget::default(), Request::new(idempotence), deadline, &events);
        let elapsed = run.ended.since(start);
        prop_assert!(elapsed <= limit.min(policy.elapsed), "{:?} of {:?}: {:?}", elapsed, limit, run.why);
        prop_assert!(run.polls + run.sends.len() as u32 <= WAITS_MAX + policy.attempts.get());
    }

    #[test]
    fn an_unsafe_call_with_an_unknown_outcome_is_never_sent_again(
        policy in policy(), events in prop::collection::vec((seen(), any::<u64>()), 1..12), one_shot in any::<bool>(),
    ) {
        let body = if one_shot { Body::OneShot } else { Body::Replayable };
        let request = Request { idempotence: Idempotence::Unsafe, body };
        let run = run(&policy, &Budget::default(), request, Deadline::UNSET, &events);
        let first = run.observed.iter().position(|(_, seen)| unknown(seen));
        if let Some(first) = first {
            prop_assert_eq!(run.sends.len(), first + 1, "sent after {:?}", run.observed[first]);
            prop_assert!(matches!(run.why, Why::OutcomeUnknown(_)), "{:?} after {:?}", run.why, run.observed[first]);
        }
        prop_assert_eq!(run.polls, 0, "without a key there is nothing to poll");
    }

    #[test]
    fn doubt_is_never_dropped(
        policy in policy(), events in prop::collection::vec((seen(), any::<u64>()), 1..6),
    ) {
        let run = run(&policy, &Budget::default(), Request::new(Idempotence::Keyed), Deadline::UNSET, &events);
        // Nothing but unknown outcomes and refusals that say nothing: whatever ended it, it may have happened.
        let says_nothing = |seen: &Seen| match &seen.outcome {
            Outcome::NotSent(_) | Outcome::Held { .. } => true,
            Outcome::Answered(answer) => answer.code.is_none() && matches!(answer.status, 401 | 403 | 429 | 503) && answer.effect.is_none(),
            _ => false,
        };
        let all = run.observed.iter().all(|(_, seen)| unknown(seen) || says_nothing(seen));
        if all && run.polls == 0 && run.observed.iter().any(|(_, seen)| unknown(seen)) {
            prop_assert!(matches!(run.why, Why::OutcomeUnknown(_)), "{:?}", run.why);
        }
    }

    #[test]
    fn a_hint_is_never_shortened(
        policy in policy(), idempotence in idempotence(),
        events in prop::collection::vec((seen(), any::<u64>()), 1..12),
    ) {
        let run = run(&policy, &Budget::default(), Request::new(idempotence), Deadline::UNSET, &events);
        for (_, pause) in &run.pauses {
            prop_assert!(pause.delay >= pause.asked.unwrap_or_default(), "{:?}", pause);
        }
    }

    #[test]
    fn a_stream_that_was_read_from_is_never_sent_again(
        policy in policy(), idempotence in idempotence(),
        events in prop::collection::vec((seen(), any::<u64>()), 1..12),
    ) {
        let request = Request { idempotence, body: Body::OneShot };
        let run = run(&policy, &Budget::default(), request, Deadline::UNSET, &events);
        let touched = run.observed.iter().position(|(_, seen)| seen.reach > Reach::Head);
        if let Some(touched) = touched && run.polls == 0 {
            prop_assert_eq!(run.sends.len(), touched + 1);
        }
    }
}

fn line() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let name = prop::sample::select(vec![
        "retry-after",
        "retry-after-ms",
        "x-amz-retry-after",
        "grpc-retry-pushback-ms",
        "date",
        "age",
        "ratelimit",
        "x-ratelimit-reset",
    ]);
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9]{0,25}".prop_map(String::into_bytes),
        "[A-Z][a-z]{2,6}, [0-9 ]{2}[ -][A-Z][a-z]{2}[ -][0-9]{2,5} [0-9:]{5,9} GMT"
            .prop_map(String::into_bytes),
        "[A-Z][a-z]{2} [A-Z][a-z]{2} [0-9 ]{2} [0-9:]{8} [0-9]{4}".prop_map(String::into_bytes),
    ];
    (name, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// I-46: whatever a server writes, reading it never fails.
    #[test]
    fn i46_no_header_makes_the_reader_fail(lines in prop::collection::vec(line(), 0..5), now in any::<i64>(), status in any::<u16>()) {
        let fields = lines.iter().map(|(name, value)| (*name, value.as_slice()));
        let _ = after::read(status, fields, || retrysafe_core::time::Wall::from_unix_ms(now));
    }

    #[test]
    fn every_time_left_survives_the_wire_and_is_never_longer(nanos in 1_u64..u64::MAX / 1_000) {
        let left = Duration::from_nanos(nanos);
        let read = deadline::wire::parse_grpc(&deadline::wire::grpc(left)).unwrap();
        prop_assert!(read <= left && left - read <= left / 10_000, "{:?} for {:?}", read, left);
    }
}

/// What a caller may do with a permit, or what may happen to it.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(Pace),
    Send,
    GiveBack,
    Spend,
    Drop,
    KeepBack,
    FirstSuccess,
    Enter,
    Leave,
    Later(Duration),
}

fn act() -> impl Strategy<Value = (Act, prop::sample::Index)> {
    let act = prop_oneof![
        4 => Just(Act::Take(Pace::Transient)),
        2 => Just(Act::Take(Pace::Throttled)),
        3 => Just(Act::Send),
        2 => Just(Act::GiveBack),
        2 => Just(Act::Spend),
        2 => Just(Act::Drop),
        1 => Just(Act::KeepBack),
        1 => Just(Act::FirstSuccess),
        2 => Just(Act::Enter),
        1 => Just(Act::Leave),
        2 => millis(0..2_000).prop_map(Act::Later),
    ];
    (act, any::<prop::sample::Index>())
}

fn balanced(account: Account) -> bool {
    i128::from(account.held) + i128::from(account.balance) + i128::from(account.spent)
        == i128::from(account.capacity)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    /// Against a second set of books, kept by hand.
    #[test]
    fn budgets_conserve_under_any_interleaving(acts in prop::collection::vec(act(), 1..120)) {
        let bucket = Bucket { capacity: 60, ..Bucket::default() };
        let rules = Rules { bucket: Some(bucket), ratio: Some(Ratio { reserve: 8, ..Ratio::default() }), concurrency: Some(Concurrency::default()), ..Rules::NONE };
        let budget = Budget::new(rules);
        let mut now = Mono::START;
        let mut entries: Vec<Entry> = vec![budget.enter(now)];
        let mut permits: Vec<(Permit, u64, bool)> = Vec::new();
        let mut spent = 0_u64;
        for (act, index) in acts {
            let chosen = (!permits.is_empty()).then(|| index.index(permits.len()));
            match (act, chosen) {
                (Act::Take(pace), _) => {
                    let cost = if pace == Pace::Transient { 14 } else { 5 };
                    let before = budget.reading(now);
                    let entry = index.index(entries.len());
                    match entries[entry].take(pace, now) {
                        Ok(permit) => permits.push((permit, cost, false)),
                        Err(_) => prop_assert_eq!(budget.reading(now), before, "a refusal takes nothing"),
                    }
                }
                (Act::Send, Some(at)) => { permits[at].0.sent(); permits[at].2 = true; }
                (Act::KeepBack, Some(at)) => { permits[at].0.not_sent(); permits[at].2 = false; }
                (Act::GiveBack, Some(at)) => permits.swap_remove(at).0.give_back(),
                (Act::Spend, Some(at)) => {
                    let (permit, cost, _) = permits.swap_remove(at);
                    permit.spend();
                    spent += cost;
                }
                (Act::Drop, Some(at)) => {
                    let (permit, cost, sent) = permits.swap_remove(at);
                    drop(permit);
                    spent += if sent { cost } else { 0 };
                }
                (Act::FirstSuccess, _) => { entries[0].succeeded(None); spent = spent.saturating_sub(1); }
                (Act::Enter, _) => entries.push(budget.enter(now)),
                (Act::Leave, _) if entries.len() > 1 => { entries.swap_remove(index.index(entries.len())); }
                (Act::Later(by), _) => now = now.plus(by),
                _ => {}
            }
            let reading = budget.reading(now);
            let account = reading.bucket.unwrap();
            let held: u64 = permits.iter().map(|(_, cost, _)| cost).sum();
            prop_assert_eq!((account.held, account.spent), (held, spent));
            prop_assert!(balanced(account) && account.balance >= 0);
            prop_assert!(balanced(reading.ratio.unwrap()));
            prop_assert_eq!(reading.retries as usize, permits.len());
            prop_assert_eq!(reading.calls as usize, entries.len());
        }
        drop(permits);
        drop(entries);
        let reading = budget.reading(now);
        prop_assert_eq!((reading.bucket.unwrap().held, reading.calls, reading.retries), (0, 0, 0));
    }

    /// Whatever the traffic, the retries of any nine tenths of a window are paid for by the first attempts of the window
    /// that ends with them, and the reserve. (Slots make the window nine to ten tenths of its length.)
    #[test]
    fn retries_stay_within_the_budget_over_any_window(
        traffic in prop::collection::vec((any::<bool>(), 0_u64..700), 1..300), reserve in 0_u32..4, percent in 0_u32..150,
    ) {
        let window = Duration::from_secs(10);
        let rule = Ratio { per_million: percent * 10_000, reserve, window };
        let budget = Budget::new(Rules { ratio: Some(rule), ..Rules::NONE });
        let mut now = Mono::START;
        let (mut entries, mut firsts, mut retries): (Vec<Entry>, Vec<Mono>, Vec<Mono>) = Default::default();
        for (first, gap) in traffic {
            now = now.plus(Duration::from_millis(gap));
            if first || entries.is_empty() {
                entries.push(budget.enter(now));
                firsts.push(now);
            } else if let Ok(permit) = entries[0].take(Pace::Transient, now) {
                permit.spend();
                retries.push(now);
            }
        }
        for end in &retries {
            let within = |at: &&Mono, length: Duration| **at <= *end && end.since(**at) < length;
            let sent = retries.iter().filter(|at| within(at, window / 10 * 9)).count() as u64;
            let paid = firsts.iter().filter(|at| within(at, window)).count() as u64;
            prop_assert!(sent * 100 <= u64::from(reserve) * 100 + paid * u64::from(percent), "{} for {}", sent, paid);
        }
    }
}
