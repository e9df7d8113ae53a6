//! The cases of the trackers, each a test of its own, played from `vectors/retry/calls.json`.

use crate::{play, vectors};

macro_rules! cases {
    ($($name:ident)*) => {
        $(#[test] fn $name() { play::play_named(stringify!($name)); })*
        const NAMED: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    v13_sliced_deadline
    v13_what_is_left_is_computed_after_the_sleep
    v13_a_useless_attempt_is_not_sent
    v13_an_overslept_attempt_is_not_sent
    v13_a_sleep_that_ends_on_the_deadline_stops
    v13_a_hint_beyond_the_deadline_gives_both_numbers
    v13_a_passed_deadline_sends_nothing
    i1_a_slow_invoke_is_sent_once
    i3_a_post_that_was_reset_is_not_repeated
    i4_closed_by_reset_after_processing_is_unknown
    i5_a_slow_post_is_not_repeated
    i7_the_gate_holds_for_timeouts_too
    i8_closed_without_an_answer_is_unknown
    i9_incomplete_message_is_retried_only_with_a_key
    i10_no_key_means_no_replay
    i12_a_key_makes_retries_safe_to_offer
    i13_a_post_with_503_is_not_repeated
    i14_attempt_timeouts_come_from_the_time_left
    i17_a_stored_429_is_not_worth_the_same_key
    i17_a_429_that_is_not_stored_is_retried
    i25_in_flight_waits_with_the_same_key
    i25_in_flight_past_the_deadline_is_unknown
    i25_waiting_costs_neither_attempts_nor_budget
    i32_an_exhausted_budget_fails_fast
    i32_or_paces_a_caller_that_loops
    i32_only_the_budget_paces
    i41_three_days_end_the_call_with_both_numbers
    i42_ten_minutes_are_not_cut_to_the_cap
    i45_an_hour_is_neither_slept_nor_shortened
    i47_the_answer_reaches_the_decision
    i47_a_hint_gets_jitter_that_only_adds
    i47_jitter_on_a_hint_yields_to_the_deadline_and_the_hint_does_not
    i48_the_error_says_which_limit_stopped_it
    i51_a_hint_on_a_bare_500_is_obeyed_if_500_is_retried
    i53_the_deadline_is_checked_before_the_sleep
    i56_one_deadline_not_one_for_each_attempt
    i58_a_delay_beyond_the_time_left_is_not_slept
    i59_a_stream_is_sent_and_not_sent_again
    i60_a_stream_does_not_fail_before_it_is_sent
    i60_a_stream_that_was_not_touched_is_sent_again
    i69_a_body_that_can_be_replayed_is_no_permission
    i70_an_open_breaker_is_not_retried_past_the_deadline
    i70_a_breaker_that_opens_in_time_is_waited_for_and_costs_nothing
    i70_a_bulkhead_that_does_not_say_when_ends_the_call
    i52_a_cancellation_is_never_an_outcome
    i72_a_call_cancelled_after_bytes_left_is_unknown
    i72_a_call_cancelled_before_is_not
    doubt_survives_a_refused_connection
    doubt_survives_a_rate_limiter
    doubt_survives_a_failed_authentication
    doubt_survives_an_empty_budget
    doubt_survives_a_stored_503_that_may_be_a_balancers
    doubt_is_settled_by_the_operations_own_refusal
    doubt_is_settled_by_a_replay
    doubt_does_not_matter_where_repeating_is_harmless
    poll_202_with_a_status_url_is_not_success
    poll_until_the_deadline_then_unknown
    poll_that_got_lost_is_asked_again
    poll_of_a_status_that_is_gone_asks_with_the_request
    poll_that_brings_the_stored_refusal
    poll_that_is_refused_leaves_it_unknown
    poll_an_ordinary_202_is_the_result
    poll_410_is_gone_like_404
    poll_a_503_that_is_stored_is_the_answer
    poll_a_503_that_is_not_stored_is_asked_again
    poll_that_moved_follows_the_new_url
    i70_a_paid_retry_that_was_kept_back_costs_nothing
    i35_a_retry_cancelled_in_its_sleep_costs_nothing
    i35_a_retry_cancelled_on_its_way_is_spent
    doubt_survives_an_upstream_that_was_not_reached
    i25_a_wait_of_nothing_is_not_done_at_once
    hint_a_pushback_is_kept_to_the_millisecond_and_restarts_the_schedule
    hint_a_negative_pushback_ends_the_call
    hint_waking_early_gives_the_rest_of_the_sleep
    hint_zero_is_now_and_jitter
}

/// The gate of outcome, permission and body, row by row.
#[test]
fn gate_every_row_holds() {
    let file = vectors("calls.json");
    let rows = file["cases"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.filter(|case| case["name"].as_str().unwrap().starts_with("gate_")).collect();
    assert!(rows.len() > 100, "{}", rows.len());
    rows.into_iter().for_each(play::play);
}

#[test]
fn no_case_is_forgotten() {
    for case in vectors("calls.json")["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        assert!(name.starts_with("gate_") || NAMED.contains(&name), "{name} is played by no test");
    }
}
