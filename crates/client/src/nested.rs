//! What a call hands down to the calls that it makes: its deadline, that somebody already retries, and where its keys
//! come from.
//!
//! Three layers that retry three times each send 27 requests for one failure (I-66, I-67). So an attempt runs in a
//! task-local context. A client that finds itself in one makes a single attempt, tightens its deadline to the outer
//! one, and derives its keys from the outer call: an inner call that drew a fresh key for each of the outer attempts
//! would be the anti-pattern that keys are there to prevent (I-18).
//!
//! **Limits.** The context is the task's: work that an operation spawns is outside of it. Across processes deadline and
//! marker travel as two headers, which [`inherit`] reads; keys do not, since the caller's account is not known here. A
//! handler that may run again for one request keys its own calls by their event ([`crate::Key::from_event`]).

use std::{cell::Cell, pin::Pin, time::Duration};
#[cfg(feature = "http")]
use std::{
    cell::RefCell,
    hash::{DefaultHasher, Hash, Hasher},
};

use retrysafe_core::retry::{Deadline, deadline::wire};

use crate::host::Host;

tokio::task_local! {
    static DEADLINE: Deadline;
    static RETRIED: Retried;
}

/// Header by which a request says that its sender retries it: the attempt's number. A service that handles it hands the
/// fact down with [`inherit`], so that its own clients stand down.
pub const ATTEMPT_HEADER: &str = "idempotency-attempt";

/// Random bytes that the keys of nested calls come from.
pub(crate) type Root = [u8; 16];

/// That somebody above sends the present work again if it fails, and what its calls draw their keys from.
#[derive(Debug, Default)]
pub(crate) struct Retried {
    /// Drawn by the first nested call that needs a key, and the same for every attempt of the outer call.
    root: Cell<Option<Root>>,
    /// How many keyed calls this attempt has made to each place so far.
    #[cfg(feature = "http")]
    places: RefCell<Vec<(u64, u32)>>,
}

/// Where a nested call's key comes from.
#[cfg(feature = "http")]
pub(crate) struct Lineage {
    pub(crate) root: Root,
    pub(crate) place: u64,
    /// Which of the outer attempt's calls to this place it is.
    pub(crate) ordinal: u32,
}

/// Runs one attempt of a call: in its deadline and, unless somebody above retries already, as work that is retried.
/// Hands back the root, should a nested call have drawn one.
/// Takes the work by its place: each wrapper of a future that is handed on by value holds it once more.
pub(crate) async fn attempt<F: Future>(
    deadline: Deadline,
    root: Option<Root>,
    work: Pin<&mut F>,
) -> (F::Output, Option<Root>) {
    if is_retried() {
        return (DEADLINE.scope(deadline, work).await, None);
    }
    let retried = Retried::default();
    retried.root.set(root);
    let mut scoped = std::pin::pin!(RETRIED.scope(retried, DEADLINE.scope(deadline, work)));
    let done = scoped.as_mut().await;
    let root = scoped.take_value().and_then(|retried| retried.root.get());
    (done, root)
}

/// The context of one attempt, for a future that is polled by hand. Only where nobody above retries.
#[cfg(feature = "tower")]
pub(crate) struct Surroundings {
    deadline: Deadline,
    retried: Retried,
}

#[cfg(feature = "tower")]
impl Surroundings {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self { deadline, retried: Retried::default() }
    }

    /// Does a part of the attempt's work.
    pub(crate) fn enter<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (deadline, retried) = (self.deadline, std::mem::take(&mut self.retried));
        RETRIED.sync_scope(retried, || {
            let done = DEADLINE.sync_scope(deadline, work);
            self.retried = RETRIED.with(Retried::moved);
            done
        })
    }

    /// The root that a nested call has drawn in this attempt.
    pub(crate) fn root(&self) -> Option<Root> {
        self.retried.root.get()
    }
}

#[cfg(feature = "tower")]
impl Retried {
    fn moved(&self) -> Self {
        Self { root: Cell::new(self.root.get()), places: RefCell::new(self.places.take()) }
    }
}

/// The deadline that the present task has inherited.
pub(crate) fn inherited_deadline() -> Deadline {
    DEADLINE.try_with(|deadline| *deadline).unwrap_or(Deadline::UNSET)
}

/// Whether somebody above retries the present work.
pub fn is_retried() -> bool {
    RETRIED.try_with(|_| ()).is_ok()
}

/// Where the key of a call to `place` comes from, if it is nested in one that is retried. `place` is what stays the same
/// when the outer call is tried again: method and address, not the body, which may hold a time.
#[cfg(feature = "http")]
pub(crate) fn lineage(place: &impl Hash, fresh: impl FnOnce() -> Option<Root>) -> Option<Lineage> {
    let found = RETRIED.try_with(|context| {
        if context.root.get().is_none() {
            context.root.set(fresh());
        }
        let root = context.root.get()?;
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        let place = hasher.finish();
        let mut places = context.places.borrow_mut();
        let at = places.iter().position(|(known, _)| *known == place);
        let at = at.unwrap_or_else(|| {
            places.push((place, 0));
            places.len() - 1
        });
        let ordinal = places[at].1;
        places[at].1 += 1;
        Some(Lineage { root, place, ordinal })
    });
    found.ok().flatten()
}

/// Runs `work` with a deadline: every call in it ends by then, and says so to the servers it calls. A deadline that is
/// already there can only be tightened.
///
/// ```
/// use retrysafe_client::{time_left, within};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// within(Duration::from_secs(2), async {
///     within(Duration::from_secs(60), async {
///         assert!(time_left().unwrap() <= Duration::from_secs(2));
///     }).await;
/// }).await;
/// assert_eq!(time_left(), None);
/// # });
/// ```
pub async fn within<F: Future>(limit: Duration, work: F) -> F::Output {
    within_by(&Host::default(), limit, work).await
}

/// [`within`], by another clock.
pub async fn within_by<F: Future>(host: &Host, limit: Duration, work: F) -> F::Output {
    DEADLINE.scope(inherited_deadline().tighten(Deadline::within(host.now(), limit)), work).await
}

/// Time left of the inherited deadline; `None` where there is none.
pub fn time_left() -> Option<Duration> {
    time_left_by(&Host::default())
}

/// [`time_left`], by another clock.
pub fn time_left_by(host: &Host) -> Option<Duration> {
    let deadline = inherited_deadline();
    (deadline != Deadline::UNSET).then(|| deadline.left(host.now()))
}

/// Runs the handling of a request in what its headers hand down: the time left, by the contract's `deadline_header`, and
/// that the sender retries. Clients used in `work` end in time, and leave the retrying to whoever began it.
pub async fn inherit<F: Future>(
    headers: &http::HeaderMap,
    deadline_header: Option<&str>,
    work: F,
) -> F::Output {
    let host = Host::default();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let left = deadline_header.and_then(|name| wire::parse(name, text(name)?.trim()));
    let deadline = left.map_or(Deadline::UNSET, |left| Deadline::within(host.now(), left));
    let work = DEADLINE.scope(inherited_deadline().tighten(deadline), work);
    if text(ATTEMPT_HEADER).is_some() && !is_retried() {
        return RETRIED.scope(Retried::default(), work).await;
    }
    work.await
}
