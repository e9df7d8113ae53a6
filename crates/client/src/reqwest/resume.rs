//! Calls that are written down first, and what becomes of them after a crash.

use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Version};
use retrysafe_core::retry::Stop;

use super::{Answer, Client, RequestBuilder, address, request::send};
use crate::{
    http::{Asked, Bodies, Error, OutcomeUnknown, Prepared, Refused, call::Manner},
    intents::{Intent, IntentFault, Intents, OPEN_MAX, Reconciled, Undecided},
    key::Key,
};

/// What [`Client::resume`] came to.
#[derive(Debug, Default)]
pub struct Resumed {
    /// Calls that have a result now.
    pub answered: Vec<(Key, Answer)>,
    /// Calls that somebody found out about.
    pub reconciled: Vec<(Key, Reconciled)>,
    /// Calls that are still open, and why.
    pub open: Vec<(Key, StillOpen)>,
}

/// Why a call is still open.
#[derive(Debug, thiserror::Error)]
pub enum StillOpen {
    /// It was sent again, to no result.
    #[error(transparent)]
    Sent(#[from] Error<Bytes>),
    /// Nobody wants it any more, or the server may have forgotten its key; and nobody could say what became of it.
    #[error("it can no longer be sent under its key, and nobody knows what became of it: look it up")]
    TooLate,
}

impl RequestBuilder<'_> {
    /// The call as an intent, to be written down in a transaction of the caller's and carried out after its commit
    /// ([`Client::carry_out`]).
    ///
    /// # Errors
    /// [`Refused`]: there is no such call, or it carries no key.
    pub fn intent(self) -> Result<Intent, Refused> {
        self.written_down()?;
        let host = &self.client.api().inner().host;
        let (within, headers, path) = (self.within, self.headers.clone(), self.path.clone());
        let client = self.client;
        let prepared = Prepared::new(client.api(), self.asked()?)?;
        intent_of(client, &prepared, headers, path, within, host.wall())
    }

    fn written_down(&self) -> Result<(), Refused> {
        if self.is_bytes() {
            return Ok(());
        }
        Err(Refused::Intent("its body is a stream, which is not written down; send it as bytes".into()))
    }

    /// Writes the call down.
    pub(super) async fn begin(self) -> Result<(Intent, Prepared), Error<Bytes>> {
        let client = self.client;
        let (within, headers, path) = (self.within, self.headers.clone(), self.path.clone());
        let Some(intents) = client.inner().intents.clone() else {
            return Err(Refused::Intent("the client has no place for intents".into()).into());
        };
        self.written_down()?;
        let prepared = Prepared::new(client.api(), self.asked()?)?;
        let now = client.api().inner().host.wall();
        let intent = intent_of(client, &prepared, headers, path, within, now)?;
        intents.save(&intent).await.map_err(refused)?;
        Ok((intent, prepared))
    }
}

impl Client {
    /// Carries out an intent that the caller has written down.
    ///
    /// # Errors
    /// [`Error`]; while it may still come to something, the intent stays open.
    pub async fn carry_out(&self, intent: &Intent) -> Result<Answer, Error<Bytes>> {
        let sent = self.send_intent(intent).await;
        self.settled(intent, sent).await
    }

    /// Takes up what was left open: sends it again under the same key while it is wanted and the server's window certainly
    /// lasts, else asks the [`crate::intents::Reconcile`] hook. Never under another key.
    ///
    /// # Errors
    /// [`IntentFault`]: the intents cannot be read, or the client has no place for them.
    pub async fn resume(&self) -> Result<Resumed, IntentFault> {
        let Some(intents) = self.inner().intents.clone() else {
            return Err(IntentFault::Store("the client has no place for intents".into()));
        };
        let mut resumed = Resumed::default();
        for intent in intents.open(OPEN_MAX).await? {
            self.take_up(&*intents, intent, &mut resumed).await?;
        }
        Ok(resumed)
    }

    /// Asks the hook what became of a call that may have happened. `Unknown` without a hook.
    pub async fn reconcile(&self, unknown: &OutcomeUnknown) -> Reconciled {
        match &self.inner().reconcile {
            Some(hook) => hook.reconcile(Undecided::Call(unknown)).await,
            None => Reconciled::Unknown,
        }
    }

    async fn take_up(
        &self,
        intents: &dyn Intents,
        intent: Intent,
        resumed: &mut Resumed,
    ) -> Result<(), IntentFault> {
        let key = intent.key.clone();
        let now = self.api().inner().host.wall();
        // All attempts have to arrive within the window.
        let margin = self.api().explain().time_max;
        if now < intent.wanted_until && now.plus(margin) < intent.window_ends {
            match self.carry_out(&intent).await {
                Ok(answer) => resumed.answered.push((key, answer)),
                Err(error) => resumed.open.push((key, error.into())),
            }
            return Ok(());
        }
        let found = match &self.inner().reconcile {
            Some(hook) => hook.reconcile(Undecided::Intent(&intent)).await,
            None => Reconciled::Unknown,
        };
        match found {
            Reconciled::Unknown => resumed.open.push((key, StillOpen::TooLate)),
            found => {
                intents.settle(&key).await?;
                resumed.reconciled.push((key, found));
            }
        }
        Ok(())
    }

    async fn send_intent(&self, intent: &Intent) -> Result<Answer, Error<Bytes>> {
        let uri = address(&self.inner().base, &intent.path)?;
        let asked = Asked {
            method: intent.method.clone(),
            uri,
            headers: intent.headers.clone(),
            version: Version::default(),
            extensions: Extensions::default(),
            body: Some(intent.body.clone()),
            again: false,
            key: Some(intent.key.clone()),
        };
        let prepared = Prepared::new(self.api(), asked)?;
        let left = intent.wanted_until.since(self.api().inner().host.wall());
        let manner = Manner { whole: Some(self.inner().answer_max), within: Some(left), hedge: None };
        send(self, prepared, Bodies::none(), manner).await
    }

    /// Takes the intent away where the call has come to an end of its own.
    pub(super) async fn settled(
        &self,
        intent: &Intent,
        sent: Result<Answer, Error<Bytes>>,
    ) -> Result<Answer, Error<Bytes>> {
        let ended = match &sent {
            Ok(_) => true,
            Err(Error::Stopped(stopped)) => final_stop(&stopped.because),
            Err(Error::Refused(_) | Error::OutcomeUnknown(_)) => false,
        };
        if let (true, Some(intents)) = (ended, &self.inner().intents)
            && let Err(fault) = intents.settle(&intent.key).await
        {
            // It is sent once more after a restart, and fetches the same answer.
            tracing::warn!(target: "retrysafe::client", %fault, "the end of a call could not be written down");
        }
        sent
    }
}

/// Whether sending it again under its key would never come to more.
fn final_stop(because: &Stop) -> bool {
    !because.may_help_later()
}

fn intent_of(
    client: &Client,
    prepared: &Prepared,
    headers: http::HeaderMap,
    path: String,
    within: Option<Duration>,
    now: retrysafe_core::time::Wall,
) -> Result<Intent, Refused> {
    let (Some(key), Some(replay)) = (prepared.key.clone(), prepared.replay) else {
        return Err(Refused::Intent("this call carries no key that the API honours".into()));
    };
    let body = prepared.body.clone().unwrap_or_default();
    let _ = client;
    let window_ends = now.plus(replay);
    let wanted_until = within.map_or(window_ends, |limit| now.plus(limit));
    Ok(Intent {
        key,
        method: prepared.method.clone(),
        path,
        headers,
        body,
        opened: now,
        wanted_until,
        window_ends,
    })
}

fn refused(fault: IntentFault) -> Error<Bytes> {
    match fault {
        IntentFault::Changed => Refused::BodyChanged.into(),
        other => Refused::Intent(other.to_string()).into(),
    }
}
