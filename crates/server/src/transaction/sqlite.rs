//! Both shapes on SQLite: the handler is a synchronous closure on the store's writer thread (protocol 28).
//!
//! The claim is judged inside the closure's own transaction, so nobody is ever in between: a second caller waits in line
//! behind the first, and finds its answer.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::Response;
use retrysafe_core::{
    address::Address,
    claim::Opened,
    contract::Shape,
    record::{RecoveryClass, Write},
};
use retrysafe_store::{
    ErrorKind, StoreError,
    sqlite::{SqliteStore, SqliteTx, Transacted, Verdict},
    transactional::Undone,
};

use super::{Attempted, Ended};
use crate::{
    body::Body,
    engine::{Arbiter, Claimed, Held, InStore, Tried},
    finish::{Complete, End},
    guard::{Guard, Job, Ran},
    plan::Plan,
    reply::{Refuse, Reply, respond},
};

/// A handler that runs at most once, taken by the attempt that wins.
struct Handler<W> {
    guard: Arc<Guard>,
    plan: Arc<Plan>,
    store: Arc<SqliteStore>,
    work: Arc<Mutex<Option<W>>>,
}

/// What the writer thread hands back beside the rows.
enum Said {
    Live { live: Response<Body>, status: u16 },
    Held,
    Freed(Option<Response<Body>>),
    Failed,
}

impl<W> Handler<W>
where
    W: FnOnce(&SqliteTx<'_>) -> Result<Reply, Refuse> + Send + 'static,
{
    /// Runs the handler where `opened` holds. `None`: something else is there, and it was not run.
    async fn run(&self, address: &Address, opened: Opened) -> Result<Tried<Attempted>, StoreError> {
        let (attempt, fingerprint, expect) = (opened.attempt(), *opened.fingerprint(), opened.expect());
        let (guard, plan, work) = (Arc::clone(&self.guard), Arc::clone(&self.plan), Arc::clone(&self.work));
        let run = move |tx: &SqliteTx<'_>| {
            let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
            match taken {
                Some(work) => guard.verdict(&plan, opened, work(tx)),
                None => Verdict::GiveUp(Said::Failed),
            }
        };
        let ended = match self.store.transact(address, expect, attempt, run).await {
            Ok(Transacted::Seen(present)) => return Ok(Tried::Seen(present)),
            Ok(Transacted::Committed(_, Said::Live { live, status })) => Ended::Committed { live, status },
            Ok(Transacted::Committed(_, Said::Held)) => Ended::Held,
            Ok(Transacted::Committed(..)) => Ended::Failed,
            Ok(Transacted::GivenUp(Said::Freed(live))) => Ended::Freed(live),
            Ok(Transacted::GivenUp(_)) => Ended::Failed,
            Ok(Transacted::Panicked) => {
                self.guard.engine.meters.panicked();
                tracing::error!(endpoint = %self.plan.endpoint.name, %attempt, "the handler panicked");
                Ended::Freed(None)
            }
            Err(error) if error.kind() == ErrorKind::Unknown => Ended::Unknown(None),
            // It was not run: a turn did not come, a record cannot be read.
            Err(error) if self.is_unused() => return Err(error),
            Err(error) => {
                tracing::error!(%error, "a batch with a handler's work in it was lost; nothing of it is kept");
                Ended::Failed
            }
        };
        Ok(Tried::Won(Attempted { attempt, fingerprint, ended }))
    }

    fn is_unused(&self) -> bool {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl<W> Arbiter for Handler<W>
where
    W: FnOnce(&SqliteTx<'_>) -> Result<Reply, Refuse> + Send + 'static,
{
    /// It has run by then: winning and working are one step here.
    type Won = Attempted;

    const MAY_LOCK: bool = false;

    async fn attempt(&mut self, address: &Address, write: &Write) -> Result<Tried<Attempted>, StoreError> {
        match Opened::of(write.clone()) {
            Some(opened) => self.run(address, opened).await,
            // `decide` makes no other claims.
            None => Ok(Tried::Seen(None)),
        }
    }
}

impl Guard {
    /// As [`Guard::transact`], on SQLite.
    pub(crate) async fn transact_sqlite<W>(
        self: Arc<Self>,
        job: Box<Job>,
        store: Arc<SqliteStore>,
        work: W,
    ) -> Response<Body>
    where
        W: FnOnce(&SqliteTx<'_>) -> Result<Reply, Refuse> + Send + 'static,
    {
        if let Some(refused) = self.refuse_to_transact(&job, &store) {
            return refused;
        }
        let guard = Arc::clone(&self);
        let plan = Arc::clone(&job.plan);
        let handler = Handler {
            guard: Arc::clone(&self),
            plan: Arc::clone(&job.plan),
            store,
            work: Arc::new(Mutex::new(Some(work))),
        };
        let task = Box::pin(async move {
            match job.plan.endpoint.transaction {
                Shape::One => guard.sqlite_in_one(&job, handler).await,
                Shape::ClaimFirst => guard.sqlite_claim_first(&job, handler).await,
            }
        });
        self.detached(&plan.endpoint, task).await
    }

    async fn sqlite_in_one<W>(&self, job: &Job, mut handler: Handler<W>) -> Response<Body>
    where
        W: FnOnce(&SqliteTx<'_>) -> Result<Reply, Refuse> + Send + 'static,
    {
        let _running = self.engine.meters.running();
        match self.claim(job, RecoveryClass::Atomic, &mut handler).await {
            Ok(Claimed::Won(held)) => {
                let Held { won: attempted, permit: _permit } = *held;
                self.answer_ended(job, attempted).await
            }
            Ok(Claimed::Told(told)) => self.tell(told, job).await,
            Err(error) => self.claim_failed(job, &error),
        }
    }

    async fn sqlite_claim_first<W>(&self, job: &Job, handler: Handler<W>) -> Response<Body>
    where
        W: FnOnce(&SqliteTx<'_>) -> Result<Reply, Refuse> + Send + 'static,
    {
        match self.claim(job, RecoveryClass::Atomic, &mut InStore(&self.engine)).await {
            Ok(Claimed::Won(held)) => {
                let Held { won: claim, permit: _permit } = *held;
                let _running = self.engine.meters.running();
                let opened = claim.in_transaction();
                let (attempt, fingerprint) = (opened.attempt(), *opened.fingerprint());
                let run = handler.run(&job.address, opened);
                let ended = match self.engine.keep_claim(&claim, &job.plan.endpoint, pin!(run)).await {
                    Ok(Tried::Won(attempted)) => attempted.ended,
                    Ok(Tried::Seen(_) | Tried::Locked) => Ended::Undone(Undone::Stale),
                    Err(error) => {
                        tracing::error!(%error, "nothing was run");
                        Ended::Failed
                    }
                };
                let attempted = Attempted { attempt, fingerprint, ended };
                self.settle_first(job, attempt, attempted.ended.is_rolled_back()).await;
                self.answer_ended(job, attempted).await
            }
            Ok(Claimed::Told(told)) => self.tell(told, job).await,
            Err(error) => self.claim_failed(job, &error),
        }
    }

    /// On the writer thread: what becomes of the rows and of the record, given what the handler said.
    fn verdict(&self, plan: &Plan, opened: Opened, said: Result<Reply, Refuse>) -> Verdict<Said> {
        let endpoint = &plan.endpoint;
        let result = match said {
            Err(Refuse::Failed(error)) => {
                tracing::warn!(endpoint = %endpoint.name, error, "a handler failed; its work is taken back");
                return Verdict::GiveUp(Said::Failed);
            }
            result => result,
        };
        let now = match self.engine.store.now() {
            Ok(now) => now,
            Err(error) => {
                tracing::error!(%error, "the store cannot tell the time; a handler's work is taken back");
                return Verdict::GiveUp(Said::Failed);
            }
        };
        let ran = Ran::of(respond(result), endpoint.limits.response_body_max);
        match self.conclude(endpoint, RecoveryClass::Atomic, ran) {
            End::Complete(Complete { outcome, times, resource, live, keeps_effect }) => {
                let status = outcome.status;
                let write = Box::new(opened.complete(outcome, times, resource, now));
                let said = Said::Live { live, status };
                if keeps_effect { Verdict::Keep(write, said) } else { Verdict::Undo(write, said) }
            }
            End::Hold(why) => Verdict::Undo(Box::new(opened.hold(why, now)), Said::Held),
            End::Release(live) => Verdict::GiveUp(Said::Freed(live)),
            End::Resend => Verdict::GiveUp(Said::Freed(None)),
        }
    }
}
