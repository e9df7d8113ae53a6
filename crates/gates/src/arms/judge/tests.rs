use std::time::Duration;

use super::*;
use crate::arms::Shape;
use crate::arrive::{Lost, Timed};
use crate::observe::Seen;
use crate::plan::Sign;
use crate::wire::Filled;

const KEY: KeyPlace = KeyPlace { header: None, quoted: false, required: Some(true) };

fn answers() -> Answers {
    let sign = |status| vec![Sign { status, contains: None }];
    Answers {
        in_flight: sign(409),
        mismatch: sign(422),
        not_now: vec![],
        uncertain: vec![],
        missing_key: sign(400),
        replay_marker: None,
        varying_headers: vec![],
        mismatch_beats_in_flight: false,
    }
}

/// Step, variant, when it was sent and answered, and the answer: a status with a body.
type Sent = (Step, usize, u64, u64, u16, &'static str);

fn round(arm: Arm, sent: &[Sent], total: u64) -> Round {
    let exchange = |&(step, variant, from, to, status, body): &Sent| {
        let outcome = if status == 0 {
            Err(Lost("reset".to_owned()))
        } else {
            Ok(Answer { status, headers: vec![], body: body.as_bytes().to_vec() })
        };
        let ms = Duration::from_millis;
        let told = crate::told::told(&outcome, &answers());
        let timed =
            Timed { first_sent: ms(from), last_sent: ms(from), first_byte: None, done: ms(to), outcome };
        let request = Filled { method: "POST".into(), path: "/".into(), headers: vec![], body: None };
        Exchange { step, variant, base: 0, request, timed, told }
    };
    Round {
        arm,
        shape: Shape::AtOnce,
        number: 1,
        exchanges: sent.iter().map(exchange).collect(),
        nonces: vec!["nonce-1".into(), "nonce-2".into()],
        seen: vec![Seen { observer: "table".into(), total, each: None }],
        in_hand: true,
        held: None,
        effect_at: None,
    }
}

fn found(arm: Arm, sent: &[Sent], total: u64) -> Vec<String> {
    judge(&round(arm, sent, total), &answers(), &KEY).iter().map(|finding| format!("{finding:?}")).collect()
}

/// One finding of this kind, with this in it.
fn finds(arm: Arm, sent: &[Sent], total: u64, kind: &str, text: &str) {
    let found = found(arm, sent, total);
    assert!(found.iter().any(|it| it.starts_with(kind) && it.contains(text)), "{arm:?}: {found:?}");
}

fn clean(arm: Arm, sent: &[Sent], total: u64) {
    assert_eq!(found(arm, sent, total), Vec::<String>::new(), "{arm:?}");
}

const WON: Sent = (Step::Race, 0, 0, 10, 201, "o1");
const TOLD_IN_FLIGHT: Sent = (Step::Race, 0, 1, 4, 409, "");
const REPLAYED: Sent = (Step::Race, 0, 2, 12, 201, "o1");
const AGAIN: Sent = (Step::After, 0, 20, 21, 201, "o1");
const FIRST: Sent = (Step::First, 0, 0, 10, 201, "o1");

#[test]
fn a0_a_blind_observer_makes_everything_unclear() {
    let two = [WON, (Step::Race, 1, 0, 10, 201, "o2")];
    clean(Arm::A0, &two, 2);
    finds(Arm::A0, &two, 0, "Unclear", "wrong place");
    finds(Arm::A0, &two, 1, "Unclear", "equal content");
    finds(Arm::A0, &two, 4, "Unclear", "counts 2 times");
    finds(Arm::A0, &two, 3, "Unclear", "somebody else");
    finds(Arm::A0, &[(Step::Race, 0, 0, 1, 401, "")], 0, "Unclear", "told 401");
}

#[test]
fn a1_one_effect_and_honest_answers() {
    clean(Arm::A1, &[WON, TOLD_IN_FLIGHT, REPLAYED, AGAIN], 1);
    finds(Arm::A1, &[WON, TOLD_IN_FLIGHT], 2, "Fail", "2 effects");
    finds(Arm::A1, &[WON, TOLD_IN_FLIGHT], 0, "Fail", "no effect");
    finds(Arm::A1, &[WON, (Step::Race, 0, 1, 9, 201, "o2")], 1, "Fail", "differ");
    finds(Arm::A1, &[WON, (Step::After, 0, 20, 21, 409, "")], 1, "Fail", "stuck");
    finds(Arm::A1, &[TOLD_IN_FLIGHT, (Step::After, 0, 20, 21, 409, "")], 0, "Fail", "nobody was told");
}

#[test]
fn c12_a_loser_that_is_told_500_is_a_breach() {
    finds(Arm::A1, &[WON, (Step::Race, 0, 1, 9, 500, "")], 1, "Fail", "5xx");
}

#[test]
fn an_answer_that_nobody_explained_is_not_judged() {
    finds(Arm::A1, &[WON, (Step::Race, 0, 1, 9, 429, "")], 1, "Unclear", "429");
    finds(Arm::A1, &[WON, (Step::Race, 0, 1, 9, 0, "")], 1, "Unclear", "no answer");
}

#[test]
fn a2_a_replay_is_the_answer() {
    clean(Arm::A2, &[WON, AGAIN], 1);
    finds(Arm::A2, &[WON, (Step::After, 0, 20, 21, 201, "o2")], 1, "Fail", "not the answer");
    finds(Arm::A2, &[WON, (Step::After, 0, 20, 21, 409, "")], 1, "Fail", "asked again");
    let marked = Answers { replay_marker: Some("idempotent-replayed".into()), ..answers() };
    assert_eq!(judge_replay(&round(Arm::A2, &[WON, AGAIN], 1), &marked).len(), 1);
}

#[test]
fn a3_another_body_is_refused_and_does_nothing() {
    let other = |told, body| (Step::After, 1, 20, 21, told, body);
    clean(Arm::A3, &[FIRST, other(422, "")], 1);
    finds(Arm::A3, &[FIRST, other(201, "o1")], 1, "Fail", "the replay of");
    finds(Arm::A3, &[FIRST, other(201, "o2")], 2, "Fail", "2 effects");
    finds(Arm::A3, &[FIRST, other(409, "")], 1, "Fail", "stuck");
    finds(Arm::A3, &[FIRST, other(417, "")], 1, "Unclear", "mismatch = [417]");
}

#[test]
fn c13_a_mismatch_in_flight_is_a_note_unless_the_plan_asks_for_it() {
    let sent = [WON, (Step::Race, 1, 1, 4, 409, "")];
    finds(Arm::A3, &sent, 1, "Note", "not theirs");
    let strict = Answers { mismatch_beats_in_flight: true, ..answers() };
    assert!(matches!(judge(&round(Arm::A3, &sent, 1), &strict, &KEY).as_slice(), [Finding::Fail(_)]));
}

#[test]
fn c16_a4_a_key_belongs_to_its_account() {
    let second = |status, body| (Step::After, 1, 20, 21, status, body);
    clean(Arm::A4, &[FIRST, second(201, "o2")], 2);
    finds(Arm::A4, &[FIRST, second(201, "o1")], 1, "Fail", "first one's answer");
    finds(Arm::A4, &[FIRST, second(201, "about nonce-1")], 1, "Fail", "what the first one sent");
    finds(Arm::A4, &[FIRST, second(422, "")], 1, "Fail", "not scoped");
    finds(Arm::A4, &[FIRST, second(201, "o2")], 1, "Fail", "1 effects, not 2");
}

#[test]
fn a5_no_operation_tells_anothers_answer() {
    let second = |status, body| (Step::After, 1, 20, 21, status, body);
    clean(Arm::A5, &[FIRST, second(422, "")], 1);
    clean(Arm::A5, &[FIRST, second(200, "refund")], 2);
    finds(Arm::A5, &[FIRST, second(200, "o1")], 1, "Fail", "the answer of the first");
    finds(Arm::A5, &[FIRST, second(500, "")], 1, "Fail", "told 500");
}

#[test]
fn a6_a_required_key_is_required() {
    clean(Arm::A6, &[(Step::First, 0, 0, 1, 400, "")], 0);
    finds(Arm::A6, &[FIRST], 1, "Fail", "counted 1 effects");
    finds(Arm::A6, &[FIRST], 0, "Fail", "told 201");
    let optional = KeyPlace { required: Some(false), ..KEY };
    assert_eq!(judge(&round(Arm::A6, &[FIRST], 1), &answers(), &optional), []);
}

#[test]
fn c36_a7_a_key_that_is_accepted_and_not_applied() {
    clean(Arm::A7, &[FIRST, AGAIN], 1);
    finds(Arm::A7, &[FIRST, (Step::After, 0, 20, 21, 201, "o2")], 2, "Fail", "not applied");
    finds(Arm::A7, &[FIRST, (Step::After, 0, 20, 21, 409, "")], 1, "Fail", "repeat was told 409");
    finds(Arm::A7, &[(Step::First, 0, 0, 1, 501, ""), AGAIN], 0, "Unclear", "told 501");
}

#[test]
fn a8_intended_twins_are_two() {
    let second = |status| (Step::After, 1, 20, 21, status, "o2");
    clean(Arm::A8, &[FIRST, second(201)], 2);
    finds(Arm::A8, &[FIRST, second(201)], 1, "Fail", "twins");
    finds(Arm::A8, &[FIRST, second(422)], 1, "Fail", "derives keys");
    finds(Arm::A8, &[FIRST, second(403)], 1, "Unclear", "rule of the business");
}

#[test]
fn a9_only_one_of_two_bodies_runs() {
    let other = |status, body| (Step::Race, 1, 1, 9, status, body);
    clean(Arm::A9, &[WON, other(422, "")], 1);
    finds(Arm::A9, &[WON, other(201, "o1")], 1, "Fail", "the replay of");
    finds(Arm::A9, &[WON, other(201, "o2")], 2, "Fail", "beside that");
}

#[test]
fn c17_a10_a_failure_is_not_done_twice() {
    let failed = |step| (step, 0, 0, 10, 500, "");
    clean(Arm::A10, &[failed(Step::First), failed(Step::After)], 1);
    finds(Arm::A10, &[failed(Step::First), failed(Step::After)], 2, "Fail", "not kept");
    finds(Arm::A10, &[FIRST, AGAIN], 1, "Unclear", "declined");
}
