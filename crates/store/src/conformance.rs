//! The suite that every store must pass.
//!
//! An implementor writes a [`Place`] and calls [`run`]; what the store's [`Capability`](crate::Capability) does not
//! claim is not asked of it. Every case gets a place of its own, so that a case can be understood alone.
//!
//! ```
//! use std::sync::Arc;
//! use retrysafe_store::{Store, StoreError, conformance::{self, Place}, memory::{MemoryOptions, MemoryStore}};
//!
//! struct Memory;
//! impl Place for Memory {
//!     fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
//!         Ok(Arc::new(MemoryStore::new(MemoryOptions::default())))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async {
//! conformance::run(|| Memory).await;
//! # });
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a suite says what is wrong by panicking"
)]

use std::{future::Future, pin::Pin, sync::Arc};

use crate::{Store, StoreError};

mod claims;
mod content;
mod holders;
mod indexes;
mod journals;
mod lifetimes;
pub(crate) mod samples;

/// Somewhere a store can be opened: a directory, a schema, or nothing for a store in memory.
///
/// Dropping the place removes what it made.
pub trait Place: Send + Sync {
    /// A handle on the store of this place, as another process would open it.
    ///
    /// The suite opens a second one while the first is open only where the capability says `shared`, and one after the
    /// last was dropped only where it says `survives_process`. Dropping the last clone of the handle closes it before
    /// `drop` returns.
    ///
    /// # Errors
    /// Any: the suite fails.
    fn open(&self) -> Result<Arc<dyn Store>, StoreError>;
}

type Case = (&'static str, for<'a> fn(&'a dyn Place) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>);

macro_rules! cases {
    ($($module:ident::$case:ident),+ $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($case)), |place| Box::pin($module::$case(place)))),+]
    };
}

const CASES: &[Case] = cases![
    claims::r1_of_fifty_at_once_exactly_one_wins,
    claims::a_loser_gets_the_record_that_is_there,
    claims::what_is_at_hand_is_what_a_load_tells,
    claims::r6_an_own_claim_that_was_sent_again_is_won_again,
    claims::a_claim_on_an_absent_key_under_a_stale_view_is_refused,
    claims::an_expired_window_allows_one_new_claim,
    claims::f16_case_and_trailing_space_make_another_key,
    claims::k5_namespace_and_account_make_another_key,
    holders::a_holder_completes_its_claim,
    holders::r6_an_own_completion_that_was_sent_again_is_done,
    holders::r3_a_stale_attempt_is_refused_in_every_state,
    holders::a_completed_record_is_never_overwritten_by_its_holder,
    holders::r4_a_renewal_does_not_disturb_the_completion,
    holders::r4_a_late_renewal_does_not_wake_what_was_held_or_released,
    holders::protocol_9_an_uncertain_record_is_settled_by_its_attempt,
    holders::takeover_needs_attempt_state_and_expiry_together,
    holders::protocol_6_the_eight_steps_of_a_double_effect_end_at_the_seventh,
    holders::r1_of_twenty_takeovers_at_once_exactly_one_wins,
    holders::r2_only_the_holder_releases,
    lifetimes::t4_the_reaper_never_removes_what_is_not_completed,
    lifetimes::reaping_needs_the_attempt_and_the_threshold,
    lifetimes::protocol_7_the_fence_grows_across_claims_takeovers_and_removal,
    lifetimes::the_clock_of_every_handle_never_goes_backward,
    lifetimes::reopening_keeps_every_record_and_the_fence,
    lifetimes::two_handles_share_one_truth,
    content::s10_an_answer_comes_back_byte_for_byte,
    content::a_large_body_comes_back_byte_for_byte,
    indexes::due_is_oldest_first_and_limited,
    indexes::due_follows_every_change_of_state,
    indexes::protocol_31_a_status_id_finds_its_address_in_its_namespace_only,
    indexes::spec_3_2_ending_a_resource_shortens_its_windows_and_no_others,
    indexes::listing_pages_through_everything_once,
    indexes::listing_filters,
    indexes::the_census_counts_states,
    indexes::spec_10_4_a_day_is_the_sum_of_what_processes_counted,
    journals::spec_5_3_entries_are_committed_with_their_record_and_read_in_order,
    journals::protocol_6_a_holder_that_was_taken_over_writes_no_entry,
    journals::an_entry_whose_place_is_taken_changes_nothing,
    journals::a_late_renewal_takes_no_recovery_point_back,
    journals::a_staged_effect_is_one_drainers_at_a_time_and_ends_once,
    journals::spec_5_3_replays_of_processes_add_up_where_there_is_a_journal,
    journals::an_act_is_logged_in_the_commit_it_speaks_of_and_stays,
    journals::journals_are_forgotten_when_their_record_is_gone_and_their_effects_are_sent,
];

/// Runs every case, each in a place that `make` makes. Needs a Tokio runtime.
///
/// # Panics
/// At the first case that fails; its name is printed.
pub async fn run<P: Place>(make: impl Fn() -> P) {
    for (name, case) in CASES {
        let report = ReportFailure(name);
        let place = make();
        case(&place).await;
        drop(report);
    }
}

/// The names of the cases, for a report.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name)
}

struct ReportFailure(&'static str);

impl Drop for ReportFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance case failed: {}", self.0);
        }
    }
}
