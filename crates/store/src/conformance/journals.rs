//! Journals and staged effects: in the commit of the record they speak of, or not at all.

use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::{
    ids::StatusId,
    record::{Expect, Record, State, Uncertainty, Write},
    recovery::{Act, DownstreamKey, Entry, Event, Snapshot, StepName},
};

use super::{Place, samples::*};
use crate::{
    Written,
    journal::{
        EffectState, NewAct, NewEffect, Notes, REPLAYS_AT_ONCE, Replays, Sent, StagedCensus, StagedEffect,
        WHY_MAX_BYTES,
    },
};

fn step(name: &str) -> StepName {
    StepName::from_stored(name).unwrap()
}

fn entry(record: &Record, seq: u32, event: Event) -> Entry {
    Entry { seq, attempt: record.attempt, at: at(1), event }
}

fn opened(record: &Record) -> Entry {
    let request = Snapshot { principal: "alice".into(), fields: Bytes::from_static(b"{\"cents\":1}") };
    entry(record, 0, Event::Opened { plan: "rides: create=phase".into(), request, deadline: at(60) })
}

fn done(record: &Record, seq: u32) -> Entry {
    entry(record, seq, Event::Done { step: step("create"), result: Bytes::from_static(b"7") })
}

fn notes(record: &Record, entries: Vec<Entry>) -> Notes {
    Notes::entries(record.status_id, entries)
}

/// A write that keeps the claim of `record`.
fn keeps(record: &Record) -> Write {
    let state = State::InFlight { lease_until: at(90) };
    Write { expect: renewing(record), next: Record { state, ..record.clone() } }
}

fn effect(record: &Record, name: &str, due: u64) -> NewEffect {
    let key = DownstreamKey::derive(record.status_id, "rides", &step(name));
    let payload = Bytes::from_static(b"\x00payload\xff");
    NewEffect { name: name.into(), key, payload, at: at(1), due: at(due) }
}

pub(super) async fn spec_5_3_entries_are_committed_with_their_record_and_read_in_order(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let address = address("k");
    let record = claim(&*store, &address, 1).await;
    assert_eq!(journals.journal(record.status_id).await.unwrap(), []);
    let first = notes(&record, vec![opened(&record)]);
    assert_eq!(
        journals.note_if(&address, &keeps(&record), &first).await.unwrap(),
        Written::Yes(record.fence)
    );
    let second = notes(&record, vec![done(&record, 1), entry(&record, 2, Event::Ended { status: 201 })]);
    let ends = Write { expect: holder(&record), next: super::samples::done(&record) };
    assert_eq!(journals.note_if(&address, &ends, &second).await.unwrap(), Written::Yes(record.fence));
    let all: Vec<Entry> = first.entries.into_iter().chain(second.entries).collect();
    assert_eq!(journals.journal(record.status_id).await.unwrap(), all);
    assert_eq!(
        store.load(&address).await.unwrap(),
        Some(super::samples::done(&record)).map(|next| Record { fence: record.fence, ..next })
    );
}

pub(super) async fn protocol_6_a_holder_that_was_taken_over_writes_no_entry(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let address = address("k");
    let old = claim(&*store, &address, 1).await;
    let taken =
        Record { attempt: held(2).attempt, state: State::InFlight { lease_until: at(60) }, ..old.clone() };
    let taken = apply(&*store, &address, takeover(&old, at(31)), &taken).await;
    let mut zombie = notes(&old, vec![opened(&old)]);
    zombie.staged.push(effect(&old, "mail", 0));
    let refused = journals.note_if(&address, &keeps(&old), &zombie).await.unwrap();
    assert_eq!(refused, Written::No(Some(taken.clone())));
    assert_eq!(journals.journal(old.status_id).await.unwrap(), []);
    assert_eq!(journals.staged_census().await.unwrap(), StagedCensus::default());
    // What is held by nobody's attempt is refused as well, and an uncertain record is not gone on with.
    let uncertain = State::Uncertain { since: at(40), why: Uncertainty::Stopped };
    let held_back = Record { state: uncertain, ..taken.clone() };
    apply(&*store, &address, holder(&taken), &held_back).await;
    let late = notes(&taken, vec![opened(&taken)]);
    assert!(matches!(journals.note_if(&address, &keeps(&taken), &late).await.unwrap(), Written::No(Some(_))));
    assert_eq!(journals.journal(old.status_id).await.unwrap(), []);
}

pub(super) async fn an_entry_whose_place_is_taken_changes_nothing(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let address = address("k");
    let record = claim(&*store, &address, 1).await;
    let first = notes(&record, vec![opened(&record)]);
    journals.note_if(&address, &keeps(&record), &first).await.unwrap();
    let before = store.load(&address).await.unwrap();
    let mut again = notes(&record, vec![done(&record, 1), opened(&record)]);
    again.staged.push(effect(&record, "mail", 0));
    let ends = Write { expect: holder(&record), next: super::samples::done(&record) };
    assert!(journals.note_if(&address, &ends, &again).await.is_err());
    assert_eq!(journals.journal(record.status_id).await.unwrap(), first.entries);
    assert_eq!(store.load(&address).await.unwrap(), before);
    assert_eq!(journals.staged_census().await.unwrap(), StagedCensus::default());
}

pub(super) async fn a_late_renewal_takes_no_recovery_point_back(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let address = address("k");
    let record = claim(&*store, &address, 1).await;
    let renewal = keeps(&record);
    let first = notes(&record, vec![opened(&record), done(&record, 1)]);
    journals.note_if(&address, &keeps(&record), &first).await.unwrap();
    won(store.write_if(&address, &renewal).await.unwrap());
    assert_eq!(journals.journal(record.status_id).await.unwrap(), first.entries);
}

pub(super) async fn a_staged_effect_is_one_drainers_at_a_time_and_ends_once(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let lease = Duration::from_secs(10);
    let address = address("k");
    let record = claim(&*store, &address, 1).await;
    let mut stages = notes(&record, vec![opened(&record)]);
    stages.staged =
        vec![effect(&record, "mail", 1), effect(&record, "event", 2), effect(&record, "later", 500)];
    journals.note_if(&address, &keeps(&record), &stages).await.unwrap();
    assert_eq!(journals.take_staged(START, lease, 9).await.unwrap(), []);

    let first = journals.take_staged(at(5), lease, 1).await.unwrap();
    let [mail] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!((&*mail.name, mail.tries, mail.operation), ("mail", 1, record.status_id));
    assert_eq!((&mail.payload[..], &mail.key), (&b"\x00payload\xff"[..], &stages.staged[0].key));
    let second = journals.take_staged(at(6), lease, 9).await.unwrap();
    assert_eq!(second.iter().map(|effect| &*effect.name).collect::<Vec<_>>(), ["event"]);
    assert_eq!(journals.take_staged(at(7), lease, 9).await.unwrap(), []);

    // Its drainer was lost; the next one has the right to end it, the first has not.
    let again = journals.take_staged(at(15), lease, 1).await.unwrap();
    let [again] = again.as_slice() else { panic!("{again:?}") };
    assert_eq!((&again.name, again.tries, &again.key), (&mail.name, 2, &mail.key));
    assert!(!journals.end_staged(mail, &Sent::Yes, at(15)).await.unwrap());
    assert!(journals.end_staged(again, &Sent::Later(at(40), "busy".into()), at(16)).await.unwrap());
    assert!(journals.end_staged(&second[0], &Sent::Never("no such address".into()), at(17)).await.unwrap());
    assert!(!journals.end_staged(&second[0], &Sent::Yes, at(18)).await.unwrap(), "it is over");
    assert_eq!(journals.staged_census().await.unwrap(), StagedCensus { waiting: 2, dead: 1 });

    // And what a person sees of all this.
    let [mail] = &journals.take_staged(at(41), lease, 1).await.unwrap()[..] else { panic!("it is due") };
    assert!(journals.end_staged(mail, &Sent::Yes, at(42)).await.unwrap());
    let standing = |name: &str, state, tries, failure: Option<&str>| StagedEffect {
        name: name.into(),
        state,
        staged: Some(at(1)),
        tries,
        failure: failure.map(Into::into),
    };
    let all = [
        standing("event", EffectState::GivenUp { at: Some(at(17)) }, 1, Some("no such address")),
        standing("later", EffectState::Waiting { due: at(500) }, 0, None),
        standing("mail", EffectState::Sent { at: Some(at(42)) }, 3, None),
    ];
    assert_eq!(journals.staged_of(record.status_id, 9).await.unwrap(), all);
    assert_eq!(journals.staged_of(record.status_id, 2).await.unwrap(), all[..2]);
    assert_eq!(journals.staged_of(held(7).status_id, 9).await.unwrap(), []);
}

pub(super) async fn spec_5_3_replays_of_processes_add_up_where_there_is_a_journal(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let key = address("k");
    let record = claim(&*store, &key, 1).await;
    journals.note_if(&key, &keeps(&record), &notes(&record, vec![opened(&record)])).await.unwrap();
    let bare = claim(&*store, &address("bare"), 2).await;
    let counted = |record: &Record, times, first, last| Replays {
        operation: record.status_id,
        times,
        first: at(first),
        last: at(last),
    };
    journals.add_replays(&[]).await.unwrap();
    assert_eq!(journals.replays(record.status_id).await.unwrap(), None);
    journals.add_replays(&[counted(&record, 3, 20, 30), counted(&bare, 1, 20, 20)]).await.unwrap();
    // Another process saw it before, and goes on seeing it.
    journals.add_replays(&[counted(&bare, 1, 20, 20), counted(&record, 2, 10, 40)]).await.unwrap();
    journals.add_replays(&[counted(&record, 1, 25, 25)]).await.unwrap();
    assert_eq!(journals.replays(record.status_id).await.unwrap(), Some(counted(&record, 6, 10, 40)));
    // What has no journal would never be deleted.
    assert_eq!(journals.replays(bare.status_id).await.unwrap(), None);

    let many = |count: usize| vec![counted(&record, 1, 26, 26); count];
    let full = journals.add_replays(&many(REPLAYS_AT_ONCE + 1)).await.unwrap_err();
    assert_eq!(full.kind(), crate::ErrorKind::Full);
    // As many as there may be, most of which are no operation of this store.
    let mut most: Vec<Replays> = (1..u128::try_from(REPLAYS_AT_ONCE).unwrap())
        .map(|id| Replays {
            operation: StatusId::new(u128::MAX - id),
            times: u64::MAX,
            first: at(0),
            last: at(9),
        })
        .collect();
    most.push(counted(&record, 1, 26, 26));
    journals.add_replays(&most).await.unwrap();
    assert_eq!(journals.replays(record.status_id).await.unwrap(), Some(counted(&record, 7, 10, 40)));

    // Deleted with the journal, and not before.
    let gone = retrysafe_core::record::RemoveIf::Attempt(record.attempt);
    assert!(store.remove_if(&key, gone).await.unwrap());
    assert!(journals.replays(record.status_id).await.unwrap().is_some());
    assert_eq!(journals.forget_journals(at(9), 10).await.unwrap(), 1);
    assert_eq!(journals.replays(record.status_id).await.unwrap(), None);
}

pub(super) async fn journals_are_forgotten_when_their_record_is_gone_and_their_effects_are_sent(
    place: &dyn Place,
) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let address = address("k");
    let record = claim(&*store, &address, 1).await;
    let mut stages = notes(&record, vec![opened(&record)]);
    stages.staged.push(effect(&record, "mail", 1));
    journals.note_if(&address, &keeps(&record), &stages).await.unwrap();
    // In use; then its record is gone and its mail is not; then both are gone, and it is young; then not any more.
    assert_eq!(journals.forget_journals(at(9), 10).await.unwrap(), 0);
    assert!(
        store.remove_if(&address, retrysafe_core::record::RemoveIf::Attempt(record.attempt)).await.unwrap()
    );
    assert_eq!(journals.forget_journals(at(9), 10).await.unwrap(), 0);
    let taken = journals.take_staged(at(5), Duration::from_secs(1), 1).await.unwrap();
    assert!(journals.end_staged(&taken[0], &Sent::Yes, at(6)).await.unwrap());
    assert_eq!(journals.forget_journals(at(1), 10).await.unwrap(), 0);
    assert_eq!(journals.forget_journals(at(9), 10).await.unwrap(), 1);
    assert_eq!(journals.journal(record.status_id).await.unwrap(), []);
    // The same key anew is another operation, with a journal of its own.
    let fresh = Record { status_id: held(5).status_id, ..held(2) };
    won(store.write_if(&address, &write(Expect::Absent, &fresh)).await.unwrap());
    assert_eq!(journals.journal(fresh.status_id).await.unwrap(), []);
}

pub(super) async fn an_act_is_logged_in_the_commit_it_speaks_of_and_stays(place: &dyn Place) {
    let store = open(place);
    let Some(journals) = store.journals() else { return };
    let (one, other) = (address("k"), address("other"));
    let lost = claim(&*store, &one, 1).await;
    let bystander = claim(&*store, &other, 2).await;
    let act = |act, evidence: Option<&str>| NewAct {
        who: "ann".into(),
        act,
        why: "its rider was phoned: \u{201c}yes\u{201d}".into(),
        evidence: evidence.map(Into::into),
        at: at(40),
    };
    let with = |record: &Record, act| Notes { act: Some(act), ..notes(record, Vec::new()) };
    // Somebody else was first: neither the act nor its line.
    let stale = Write { expect: Expect::Attempt(bystander.attempt), next: super::samples::done(&lost) };
    let refused = journals.note_if(&one, &stale, &with(&lost, act(Act::Resolve, None))).await.unwrap();
    assert_eq!(refused, Written::No(Some(lost.clone())));
    assert_eq!(journals.acts(None, 0, 9).await.unwrap(), []);
    // A line that would have to be cut changes nothing either.
    let ends = Write { expect: holder(&lost), next: super::samples::done(&lost) };
    let long = NewAct { why: "x".repeat(WHY_MAX_BYTES + 1).into(), ..act(Act::Resolve, None) };
    let full = journals.note_if(&one, &ends, &with(&lost, long)).await.unwrap_err();
    assert_eq!((full.kind(), store.load(&one).await.unwrap()), (crate::ErrorKind::Full, Some(lost.clone())));

    let resolved = act(Act::Resolve, Some("receipt 7"));
    let written = journals.note_if(&one, &ends, &with(&lost, resolved.clone())).await.unwrap();
    assert_eq!(written, Written::Yes(lost.fence));
    let freed = act(Act::Release, None);
    let own = Record { attempt: held(9).attempt, ..bystander.clone() };
    let release = Write { expect: holder(&bystander), next: own.clone() };
    won(journals.note_if(&other, &release, &with(&bystander, freed.clone())).await.unwrap());
    let gone = retrysafe_core::record::RemoveIf::Attempt(own.attempt);
    assert!(store.remove_if(&other, gone).await.unwrap());

    let all = journals.acts(None, 0, 9).await.unwrap();
    let shown: Vec<_> = all.iter().map(|line| (&line.address, line.operation, &line.act)).collect();
    let expected = [(&one, lost.status_id, &resolved), (&other, bystander.status_id, &freed)];
    assert_eq!(shown, expected, "in their order, also of a key that is gone");
    assert_eq!(journals.acts(Some(&other), 0, 9).await.unwrap(), all[1..]);
    assert_eq!(journals.acts(None, all[0].number, 9).await.unwrap(), all[1..]);
    assert_eq!(journals.acts(None, 0, 1).await.unwrap(), all[..1]);
}
