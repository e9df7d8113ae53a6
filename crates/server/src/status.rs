//! Status URLs of 202 answers (protocol 31): random, bound to the scope, authorised again at each poll, never cached.

use http::{Response, request::Parts};
use retrysafe_core::{
    codes::Code,
    decide::Refusal,
    ids::StatusId,
    record::{Record, State},
};

use crate::{body::Body, engine::RETRY_AFTER_OUTAGE, guard::Guard, respond::no_store};

impl Guard {
    /// Answers a poll: 202 while in flight, then the original answer.
    pub(crate) async fn poll(&self, parts: &Parts, id: &str) -> Response<Body> {
        let Ok(id) = id.parse::<StatusId>() else { return self.respond.no_such_status() };
        let found = async {
            let namespace = &self.engine.contract.namespace;
            let Some(address) = self.engine.store.locate(namespace, id).await? else { return Ok(None) };
            let record = self.engine.store.load(&address).await?;
            Ok::<_, retrysafe_store::StoreError>(record.map(|record| (address, record)))
        };
        let (address, record) = match found.await {
            Ok(Some(found)) => found,
            Ok(None) => return self.respond.no_such_status(),
            Err(error) => {
                tracing::error!(%error, "the store failed a status poll");
                return self.refuse(Refusal::after(Code::StoreUnavailable, RETRY_AFTER_OUTAGE));
            }
        };
        // Somebody else's operation looks like none at all.
        let Some(plan) = self.plans.get(&record.endpoint) else { return self.respond.no_such_status() };
        match plan.account.account(parts) {
            Ok(account) if account == *address.account() => {}
            Ok(_) => return self.respond.no_such_status(),
            Err(_) => return self.refuse(Refusal::of(Code::ScopeMissing)),
        }
        if let Err(refused) = self.authorise(plan, parts).await {
            return refused;
        }
        let mut response = match record.state {
            State::Completed { ref outcome, .. } => self.replay(plan, outcome),
            State::InFlight { .. } => {
                let retry_after = plan.endpoint.in_flight.retry_after;
                self.respond.accepted(&self.engine.contract.status_path, record.status_id, retry_after)
            }
            State::Uncertain { .. } => {
                self.uncertain(plan, &address, Record { ..record }, &parts.headers).await
            }
        };
        no_store(&mut response);
        response
    }
}
