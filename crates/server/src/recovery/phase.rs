//! Local work and its recovery point, in one commit.

use std::{
    ops::{Deref, DerefMut},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use retrysafe_core::{
    ids::StatusId,
    record::Write,
    recovery::{DownstreamKey, Event, Kind, Next, StepName, Stopped},
    time::Wall,
};
#[cfg(feature = "sqlite")]
use retrysafe_store::sqlite::{SqliteStore, SqliteTx, Transacted, Verdict};
use retrysafe_store::{
    ErrorKind,
    journal::{ENTRY_MAX_BYTES, Journal, NewEffect, Notes},
    transactional::{Committed, OpenTransaction, Transactional, Undone},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Halt, Point, Steps,
    attempt::Attempt,
    decoded, encoded,
    steps::{Cause, named},
};
use crate::{
    body::{Body, BoxError},
    reply::Reply,
    transaction::Tx,
};

/// What a phase comes to.
#[derive(Debug)]
pub enum Phase<T> {
    /// Its rows are committed, and it runs again at the next attempt: it only looked something up, or what it wrote may be
    /// written twice.
    Continue(T),
    /// Its rows are committed together with a recovery point: it never runs again, and gives this at every later attempt.
    Point(T),
    /// Its rows are committed together with the answer of the request.
    Respond(Reply),
}

/// What a phase writes through: the transaction, and the effects that leave once it is committed.
pub struct PhaseTx<O: OpenTransaction> {
    tx: Tx<O>,
    staging: Staging,
}

impl<O: OpenTransaction> PhaseTx<O> {
    /// Stages an effect that leaves after this phase is committed, sent by the drainer under this name with a key of its own.
    ///
    /// # Errors
    /// The value cannot be serialised, or an effect of this name is staged already.
    pub fn stage(&self, name: &str, payload: &impl Serialize) -> Result<(), BoxError> {
        self.staging.stage(name, payload)
    }
}

impl<O: OpenTransaction> Deref for PhaseTx<O> {
    type Target = Tx<O>;

    fn deref(&self) -> &Tx<O> {
        &self.tx
    }
}

impl<O: OpenTransaction> DerefMut for PhaseTx<O> {
    fn deref_mut(&mut self) -> &mut Tx<O> {
        &mut self.tx
    }
}

impl<O: OpenTransaction> std::fmt::Debug for PhaseTx<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tx.fmt(f)
    }
}

/// The same on SQLite.
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub struct SqlitePhaseTx<'a> {
    tx: &'a SqliteTx<'a>,
    staging: &'a Staging,
}

#[cfg(feature = "sqlite")]
impl SqlitePhaseTx<'_> {
    /// As [`PhaseTx::stage`].
    ///
    /// # Errors
    /// As [`PhaseTx::stage`].
    pub fn stage(&self, name: &str, payload: &impl Serialize) -> Result<(), BoxError> {
        self.staging.stage(name, payload)
    }
}

#[cfg(feature = "sqlite")]
impl<'a> Deref for SqlitePhaseTx<'a> {
    type Target = SqliteTx<'a>;

    fn deref(&self) -> &SqliteTx<'a> {
        self.tx
    }
}

/// Effects of one phase.
#[derive(Clone, Debug)]
struct Staging {
    operation: StatusId,
    plan: Arc<str>,
    at: Wall,
    effects: Arc<Mutex<Vec<NewEffect>>>,
}

impl Staging {
    fn stage(&self, name: &str, payload: &impl Serialize) -> Result<(), BoxError> {
        let payload = Bytes::from(serde_json::to_vec(payload)?);
        let step = StepName::from_stored(name)?;
        if payload.len() > ENTRY_MAX_BYTES {
            return Err(format!(
                "the staged effect `{name}` has {} bytes, and up to {ENTRY_MAX_BYTES} are kept",
                payload.len()
            )
            .into());
        }
        let key = DownstreamKey::derive(self.operation, &self.plan, &step);
        let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
        if effects.iter().any(|effect| *effect.name == *name) {
            return Err(format!(
                "an effect called `{name}` is staged already; name members of a list `{name}/MEMBER`"
            )
            .into());
        }
        effects.push(NewEffect { name: name.into(), key, payload, at: self.at, due: self.at });
        Ok(())
    }

    fn take(&self) -> Vec<NewEffect> {
        std::mem::take(&mut *self.effects.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the commit of a phase consists of.
struct Ending<T> {
    write: Write,
    notes: Notes,
    said: Said<T>,
}

enum Said<T> {
    Value(T),
    Answer(Box<Response<Body>>),
}

impl<D: Journal> Attempt<D> {
    fn staging(&self, now: Wall) -> Staging {
        let plan = Arc::clone(self.plan.shape.name());
        Staging { operation: self.operation, plan, at: now, effects: Arc::default() }
    }

    /// The commit that belongs to what a phase came to.
    fn ending<T: Serialize>(
        &self,
        step: &StepName,
        phase: Phase<T>,
        staged: Vec<NewEffect>,
    ) -> Result<Ending<T>, Halt> {
        let now = self.now()?;
        let goes_on = || self.claim.renewal(now, self.lease);
        let (write, events, said) = match phase {
            Phase::Continue(value) if staged.is_empty() => (goes_on(), Vec::new(), Said::Value(value)),
            // It would run again, and stage again.
            Phase::Continue(_) => {
                return Err(Halt::astray(format!("`{step}` stages an effect and sets no recovery point")));
            }
            Phase::Point(value) => {
                let result = encoded(&value)?;
                if result.len() > ENTRY_MAX_BYTES {
                    return Err(Halt::astray(format!(
                        "the result of `{step}` is too long to be written down"
                    )));
                }
                (goes_on(), vec![Event::Done { step: step.clone(), result }], Said::Value(value))
            }
            Phase::Respond(reply) => {
                let (outcome, times, resource, live) = self.home.conclude(reply);
                let status = outcome.status;
                let write = self.claim.in_transaction().complete(outcome, times, resource, now);
                let done = Event::Done { step: step.clone(), result: Bytes::new() };
                (write, vec![done, Event::Ended { status }], Said::Answer(Box::new(live)))
            }
        };
        let notes = self.notes(self.entries(events, now), staged);
        Ok(Ending { write, notes, said })
    }

    /// After the commit of a phase.
    fn committed<T>(&self, step: &StepName, notes: &Notes, said: Said<T>) -> Result<T, Halt> {
        self.add(&notes.entries)?;
        self.observe.at(Point::Committed(step.as_str()));
        match said {
            Said::Value(value) => Ok(value),
            Said::Answer(live) => {
                self.observe.at(Point::Completed);
                Err(Halt(Cause::Answered(live)))
            }
        }
    }

    /// After a commit that may have been done, or may not: the journal says.
    async fn looked_up<T>(&self, step: &StepName, ending: Ending<T>, otherwise: Halt) -> Result<T, Halt> {
        // Without an entry nothing says whether it was committed; but then it may run again.
        match !ending.notes.entries.is_empty() && self.committer().holds(&ending.notes).await? {
            true => self.committed(step, &ending.notes, ending.said),
            false => Err(otherwise),
        }
    }
}

impl<D: Journal> Steps<D> {
    /// What is known of a phase. `Ok(None)`: it is to be run.
    fn known<T: DeserializeOwned>(&mut self, step: &StepName) -> Result<Option<T>, Halt> {
        match self.reach(step)? {
            Kind::Phase => {}
            Kind::External(_) => {
                return Err(Halt::astray(format!(
                    "`{step}` is a foreign mutation, and was called as a phase"
                )));
            }
        }
        match self.next(step)? {
            Next::Skip(result) => decoded(&result).map(Some),
            Next::Run => Ok(None),
            Next::Ask(_) | Next::Resend(_) | Next::Uncertain(_) | Next::TooLate => {
                Err(Halt::stopped(Stopped::Unresolved { step: step.clone() }))
            }
        }
    }
}

impl<D: Journal + Transactional> Steps<D> {
    /// Local work: what `work` writes, the effects it stages and the recovery point are committed together or not at all. An
    /// error rolls back, and a later attempt runs it again.
    ///
    /// # Errors
    /// [`Halt`], to be passed on with `?`.
    pub async fn phase<T, W, F>(&mut self, name: &str, work: W) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        W: FnOnce(PhaseTx<D::Open>) -> F,
        F: Future<Output = Result<Phase<T>, BoxError>>,
    {
        let step = named(StepName::new(name))?;
        if let Some(known) = self.known(&step)? {
            return Ok(known);
        }
        let attempt = Arc::clone(&self.attempt);
        let staging = attempt.staging(attempt.now()?);
        let open = Transactional::open(&*attempt.database).await.map_err(Halt::later)?;
        let home = Arc::new(tokio::sync::Mutex::new(open));
        let handle = Arc::clone(&home).lock_owned().await;
        let tx =
            Tx::new(handle, attempt.address().clone(), attempt.claim.attempt(), Some(attempt.claim.fence()));
        let tx = PhaseTx { tx, staging: staging.clone() };
        let worked = AssertUnwindSafe(async move { work(tx).await }).catch_unwind().await;
        let Some(mut open) = Arc::into_inner(home).map(tokio::sync::Mutex::into_inner) else {
            return Err(Halt::astray(format!("`{step}` gave its transaction to something that outlives it")));
        };
        let phase = match worked {
            Ok(Ok(phase)) => phase,
            Ok(Err(error)) => {
                open.roll_back().await;
                return Err(Halt::later(error));
            }
            Err(_) => {
                open.roll_back().await;
                return Err(Halt::later(format!("`{step}` panicked")));
            }
        };
        let ending = match attempt.ending(&step, phase, staging.take()) {
            Ok(ending) => ending,
            Err(halt) => {
                open.roll_back().await;
                return Err(halt);
            }
        };
        if let Err(error) = open.note(attempt.address(), &ending.notes).await {
            open.roll_back().await;
            return Err(Halt::later(error));
        }
        attempt.observe.at(Point::Committing(step.as_str()));
        match open.commit(attempt.address(), &ending.write).await {
            Ok(Committed::Yes(_)) => attempt.committed(&step, &ending.notes, ending.said),
            Ok(Committed::No(Undone::Stale)) => attempt.looked_up(&step, ending, Halt::Stale).await,
            Ok(Committed::No(Undone::Lost)) => {
                let what = format!(
                    "the transaction of `{step}` was gone before its end: a statement of it ended it"
                );
                attempt.looked_up(&step, ending, Halt::astray(what)).await
            }
            Ok(Committed::No(why @ (Undone::Conflict | Undone::Constraint))) => {
                Err(Halt::later(format!("the database rolled `{step}` back ({why:?})")))
            }
            // Absence is not failure (protocol 19): whether it is committed the journal says, and if not, the next attempt
            // takes over first, after which it cannot be any more.
            Err(error) if error.kind() == ErrorKind::Unknown => {
                attempt.looked_up(&step, ending, Halt::Lost(error.to_string().into())).await
            }
            Err(error) => attempt.looked_up(&step, ending, Halt::later(error)).await,
        }
    }
}

impl<D: Journal + Transactional> Steps<D> {
    /// The last phase: what `work` writes and the answer of the request are committed together.
    ///
    /// # Errors
    /// As [`Steps::phase`]. There is no `Ok`: the plan ends here.
    pub async fn answer<W, F>(&mut self, name: &str, work: W) -> Result<Reply, Halt>
    where
        W: FnOnce(PhaseTx<D::Open>) -> F,
        F: Future<Output = Result<Reply, BoxError>>,
    {
        let ended = self.phase(name, |tx| async { Ok(Phase::<()>::Respond(work(tx).await?)) }).await;
        ended.and_then(|()| Err(Halt::astray(format!("`{name}` answered, and its request goes on"))))
    }
}

/// What the writer thread hands back.
#[cfg(feature = "sqlite")]
enum FromWriter<T> {
    Did(Notes, Said<T>),
    Failed(BoxError),
    Halted(Halt),
}

#[cfg(feature = "sqlite")]
impl Steps<SqliteStore> {
    /// As [`Steps::phase`], on SQLite. `work` runs on the writer thread and must not wait for anything, since every key of the
    /// file waits for it.
    ///
    /// # Errors
    /// As [`Steps::phase`].
    pub async fn phase_sync<T, W>(&mut self, name: &str, work: W) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: FnOnce(&SqlitePhaseTx<'_>) -> Result<Phase<T>, BoxError> + Send + 'static,
    {
        let step = named(StepName::new(name))?;
        if let Some(known) = self.known(&step)? {
            return Ok(known);
        }
        let attempt = Arc::clone(&self.attempt);
        let staging = attempt.staging(attempt.now()?);
        let (inside, named) = (Arc::clone(&attempt), step.clone());
        let expect = attempt.claim.renewal(attempt.now()?, attempt.lease).expect;
        let run = move |tx: &SqliteTx<'_>| {
            let phase = match work(&SqlitePhaseTx { tx, staging: &staging }) {
                Ok(phase) => phase,
                Err(error) => return Verdict::GiveUp(FromWriter::Failed(error)),
            };
            let ending = match inside.ending(&named, phase, staging.take()) {
                Ok(ending) => ending,
                Err(halt) => return Verdict::GiveUp(FromWriter::Halted(halt)),
            };
            if let Err(error) = tx.note(&ending.notes) {
                return Verdict::GiveUp(FromWriter::Failed(error.into()));
            }
            inside.observe.at(Point::Committing(named.as_str()));
            Verdict::Keep(Box::new(ending.write), FromWriter::Did(ending.notes, ending.said))
        };
        let own = attempt.claim.attempt();
        match attempt.database.transact(attempt.address(), expect, own, run).await {
            Ok(Transacted::Committed(_, FromWriter::Did(notes, said))) => {
                attempt.committed(&step, &notes, said)
            }
            Ok(Transacted::Seen(_)) => Err(Halt::Stale),
            Ok(
                Transacted::GivenUp(FromWriter::Failed(error))
                | Transacted::Committed(_, FromWriter::Failed(error)),
            ) => Err(Halt::later(error)),
            Ok(
                Transacted::GivenUp(FromWriter::Halted(halt))
                | Transacted::Committed(_, FromWriter::Halted(halt)),
            ) => Err(halt),
            Ok(Transacted::GivenUp(FromWriter::Did(..))) => {
                Err(Halt::later(format!("`{step}` was taken back")))
            }
            Ok(Transacted::Panicked) => Err(Halt::later(format!("`{step}` panicked"))),
            // Whether it is committed the next attempt finds out, by the journal.
            Err(error) if error.kind() == ErrorKind::Unknown => Err(Halt::Lost(error.to_string().into())),
            Err(error) => Err(Halt::later(error)),
        }
    }

    /// As [`Steps::answer`], on SQLite.
    ///
    /// # Errors
    /// As [`Steps::answer`].
    pub async fn answer_sync<W>(&mut self, name: &str, work: W) -> Result<Reply, Halt>
    where
        W: FnOnce(&SqlitePhaseTx<'_>) -> Result<Reply, BoxError> + Send + 'static,
    {
        let ended = self.phase_sync(name, |tx| work(tx).map(Phase::<()>::Respond)).await;
        ended.and_then(|()| Err(Halt::astray(format!("`{name}` answered, and its request goes on"))))
    }
}
