//! Both shapes on a database whose transactions are driven from here.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc};

use futures_util::FutureExt;
use http::Response;
use retrysafe_core::{
    address::Address,
    claim::{Claim, Opened},
    contract::Shape,
    ids::{AttemptId, Fence},
    record::{RecoveryClass, Uncertainty, Write},
};
use retrysafe_store::{
    ErrorKind, Store, StoreError,
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};
use tokio::sync::Mutex;

use super::{Attempted, Ended, Tx};
use crate::{
    body::Body,
    engine::{Arbiter, Claimed, Held, InStore, SettleFault, Tried},
    finish::{Complete, End},
    guard::{Guard, Job, Ran},
    reply::{Refuse, Reply, respond},
};

/// One transaction: it wins by beginning.
struct Begin<'a, D>(&'a D);

impl<D: Transactional> Arbiter for Begin<'_, D> {
    type Won = (D::Open, Opened);

    const MAY_LOCK: bool = true;

    async fn attempt(&mut self, address: &Address, write: &Write) -> Result<Tried<Self::Won>, StoreError> {
        // `decide` makes no other claims.
        let Some(opened) = Opened::of(write.clone()) else { return Ok(Tried::Seen(None)) };
        Ok(match self.0.begin(address, write).await? {
            Begun::Won(open) => Tried::Won((open, opened)),
            Begun::Seen(present) => Tried::Seen(present),
            Begun::Locked => Tried::Locked,
        })
    }
}

/// The work of a handler, with what it works on.
struct Work<T, W> {
    body: T,
    work: W,
    fence: Option<Fence>,
}

impl Guard {
    /// Runs `work` in a transaction on `database`, if `job` wins its claim. In a task of its own: a commit that was polled
    /// once and dropped still commits (protocol 19).
    pub(crate) async fn transact<D, T, W, F>(
        self: Arc<Self>,
        job: Box<Job>,
        database: Arc<D>,
        body: T,
        work: W,
    ) -> Response<Body>
    where
        D: Store + Transactional,
        T: Send + 'static,
        W: FnOnce(Tx<D::Open>, T) -> F + Send + 'static,
        F: Future<Output = Result<Reply, Refuse>> + Send + 'static,
    {
        if let Some(refused) = self.refuse_to_transact(&job, &database) {
            return refused;
        }
        let guard = Arc::clone(&self);
        let plan = Arc::clone(&job.plan);
        let task = Box::pin(async move {
            match job.plan.endpoint.transaction {
                Shape::One => guard.in_one_transaction(&job, &*database, body, work).await,
                Shape::ClaimFirst => guard.claim_first(&job, &*database, body, work).await,
            }
        });
        self.detached(&plan.endpoint, task).await
    }

    async fn in_one_transaction<D, T, W, F>(
        &self,
        job: &Job,
        database: &D,
        body: T,
        work: W,
    ) -> Response<Body>
    where
        D: Transactional,
        T: Send,
        W: FnOnce(Tx<D::Open>, T) -> F + Send,
        F: Future<Output = Result<Reply, Refuse>> + Send,
    {
        match self.claim(job, RecoveryClass::Atomic, &mut Begin(database)).await {
            Ok(Claimed::Won(held)) => {
                let Held { won: (open, opened), permit: _permit } = *held;
                let _running = self.engine.meters.running();
                let work = Work { body, work, fence: None };
                let attempted = self.work_in(job, open, opened, work).await;
                // Whoever waits could see nothing until now, however this ended.
                self.engine.waiters.wake(&job.address);
                self.answer_ended(job, attempted).await
            }
            Ok(Claimed::Told(told)) => self.tell(told, job).await,
            Err(error) => self.claim_failed(job, &error),
        }
    }

    async fn claim_first<D, T, W, F>(&self, job: &Job, database: &D, body: T, work: W) -> Response<Body>
    where
        D: Transactional,
        T: Send,
        W: FnOnce(Tx<D::Open>, T) -> F + Send,
        F: Future<Output = Result<Reply, Refuse>> + Send,
    {
        match self.claim(job, RecoveryClass::Atomic, &mut InStore(&self.engine)).await {
            Ok(Claimed::Won(held)) => {
                let Held { won: claim, permit: _permit } = *held;
                let _running = self.engine.meters.running();
                let opened = claim.in_transaction();
                let work = Work { body, work, fence: Some(claim.fence()) };
                let work = async {
                    match database.open().await {
                        Ok(open) => self.work_in(job, open, opened, work).await,
                        Err(error) => {
                            tracing::error!(%error, "no transaction could be opened; nothing was run");
                            Attempted::of(&opened, Ended::Failed)
                        }
                    }
                };
                let mut attempted = self.engine.keep_claim(&claim, &job.plan.endpoint, pin!(work)).await;
                if let Ended::Undone(Undone::Lost) = attempted.ended {
                    attempted.ended = self.hold_lost(job, claim).await;
                }
                self.settle_first(job, attempted.attempt, attempted.ended.is_rolled_back()).await;
                self.answer_ended(job, attempted).await
            }
            Ok(Claimed::Told(told)) => self.tell(told, job).await,
            Err(error) => self.claim_failed(job, &error),
        }
    }

    /// A transaction that was gone before its end may have been committed half way: by a handler's own `COMMIT`, by DDL on
    /// MariaDB. The claim that was made before it stands alone then, and a release would run all of it again.
    async fn hold_lost(&self, job: &Job, claim: Claim) -> Ended {
        tracing::error!(
            endpoint = %job.plan.endpoint.name,
            "the transaction was gone before its end, and what the handler wrote may be committed; its key is uncertain"
        );
        let Ok(now) = self.engine.store.now() else { return Ended::Held };
        let settling = claim.hold(Uncertainty::ResultNotStored, now);
        match self.engine.settle_own(settling, job.plan.endpoint.windows.lease).await {
            Ok(_) => Ended::Held,
            Err(SettleFault::Stale(_)) => Ended::Overtaken,
            Err(SettleFault::Store(error)) => {
                tracing::error!(%error, "a key was not made uncertain; it runs again when its lease ends");
                Ended::Held
            }
        }
    }

    /// The claim of its own that is left when the transaction which was to end it is gone.
    pub(super) async fn settle_first(&self, job: &Job, attempt: AttemptId, rolled_back: bool) {
        if rolled_back {
            // Best effort: what is not released is free when its lease ends, and safe to run again.
            self.engine.give_up(&job.address, attempt).await;
        } else {
            // The end was committed with the rows; or, where that is not known, it may be.
            self.engine.waiters.wake(&job.address);
        }
    }

    /// Runs the handler in `open`, and ends both.
    async fn work_in<O, T, W, F>(&self, job: &Job, open: O, opened: Opened, work: Work<T, W>) -> Attempted
    where
        O: OpenTransaction,
        W: FnOnce(Tx<O>, T) -> F,
        F: Future<Output = Result<Reply, Refuse>>,
    {
        let endpoint = &job.plan.endpoint;
        let home = Arc::new(Mutex::new(open));
        let handle = Arc::clone(&home).lock_owned().await;
        let tx = Tx::new(handle, job.address.clone(), opened.attempt(), work.fence);
        let worked = AssertUnwindSafe(async move { (work.work)(tx, work.body).await }).catch_unwind().await;
        let Some(open) = Arc::into_inner(home).map(Mutex::into_inner) else {
            tracing::error!(
                endpoint = %endpoint.name,
                "the handler gave its transaction to something that outlives it; it is rolled back when that lets it go"
            );
            return Attempted::of(&opened, Ended::Failed);
        };
        let ran = match worked {
            Ok(Err(Refuse::Failed(error))) => {
                tracing::warn!(endpoint = %endpoint.name, error, "a handler failed; its transaction is rolled back");
                open.roll_back().await;
                return Attempted::of(&opened, Ended::Failed);
            }
            Ok(result) => Ran::of(respond(result), endpoint.limits.response_body_max),
            Err(_) => {
                self.engine.meters.panicked();
                tracing::error!(endpoint = %endpoint.name, attempt = %opened.attempt(), "the handler panicked");
                Ran::Panicked
            }
        };
        let end = self.conclude(endpoint, RecoveryClass::Atomic, ran);
        self.end_transaction(job, open, opened, end).await
    }

    async fn end_transaction<O: OpenTransaction>(
        &self,
        job: &Job,
        mut open: O,
        opened: Opened,
        end: End,
    ) -> Attempted {
        let (attempt, fingerprint) = (opened.attempt(), *opened.fingerprint());
        let attempted = |ended| Attempted { attempt, fingerprint, ended };
        let now = match self.engine.store.now() {
            Ok(now) => now,
            Err(error) => {
                tracing::error!(%error, "the store cannot tell the time; a transaction is rolled back");
                open.roll_back().await;
                return attempted(Ended::Failed);
            }
        };
        let (keeps_effect, write, live) = match end {
            End::Complete(Complete { outcome, times, resource, live, keeps_effect }) => {
                let status = outcome.status;
                (keeps_effect, opened.complete(outcome, times, resource, now), Some((live, status)))
            }
            End::Hold(why) => (false, opened.hold(why, now), None),
            End::Release(live) => {
                open.roll_back().await;
                return attempted(Ended::Freed(live));
            }
            End::Resend => {
                open.roll_back().await;
                return attempted(Ended::Freed(None));
            }
        };
        if !keeps_effect && let Err(error) = open.undo().await {
            tracing::error!(%error, "what a handler wrote could not be taken back; all of it is rolled back");
            open.roll_back().await;
            // There was no savepoint any more: the transaction had ended before.
            let lost = error.kind() == ErrorKind::Unknown;
            return attempted(if lost { Ended::Undone(Undone::Lost) } else { Ended::Failed });
        }
        attempted(match (open.commit(&job.address, &write).await, live) {
            (Ok(Committed::Yes(_)), Some((live, status))) => Ended::Committed { live, status },
            (Ok(Committed::Yes(_)), None) => Ended::Held,
            (Ok(Committed::No(why)), _) => Ended::Undone(why),
            (Err(error), live) if error.kind() == ErrorKind::Unknown => {
                tracing::warn!(%error, "the result of a commit is not known yet");
                Ended::Unknown(live.map(|(live, _)| live))
            }
            (Err(error), _) => {
                tracing::error!(%error, "a transaction was not committed");
                Ended::Failed
            }
        })
    }
}

impl Attempted {
    pub(super) fn of(opened: &Opened, ended: Ended) -> Self {
        Self { attempt: opened.attempt(), fingerprint: *opened.fingerprint(), ended }
    }
}
