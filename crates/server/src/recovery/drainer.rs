//! Staged effects: sent after their commit, each with its own derived key, until they are taken.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use retrysafe_core::recovery::{DownstreamKey, pause};
use retrysafe_store::{
    StoreError,
    journal::{Journal, Sent, Staged},
};
use serde::de::DeserializeOwned;

use super::{Point, Recovery};
use crate::body::BoxError;

/// An effect to be sent now.
pub struct Effect {
    name: Box<str>,
    key: DownstreamKey,
    payload: Bytes,
}

impl Effect {
    /// What it is called, with its member if it is one of a list.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The idempotency key to send it with: the same at every try.
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// What was staged.
    ///
    /// # Errors
    /// It is of another shape.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, NotSent> {
        serde_json::from_slice(&self.payload).map_err(|error| NotSent::Never(error.into()))
    }
}

impl std::fmt::Debug for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Effect").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An effect that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// It is tried again, with the same key.
    #[error("not taken yet: {0}")]
    Later(BoxError),
    /// It will never be taken.
    #[error("refused for good: {0}")]
    Never(BoxError),
}

pub(super) type Sender =
    Arc<dyn Fn(Effect) -> Pin<Box<dyn Future<Output = Result<(), NotSent>> + Send>> + Send + Sync>;

impl<D: Journal> Recovery<D> {
    /// Sends what is due, once. Returns how many effects were taken. Effects without a sender here are left to others.
    ///
    /// # Errors
    /// As the store's calls.
    pub async fn drain(&self) -> Result<usize, StoreError> {
        let Self { shared } = self;
        if shared.senders.is_empty() {
            return Ok(0);
        }
        let patience = shared.patience;
        let now = shared.database.now()?;
        let staged = shared.database.take_staged(now, patience.effect_lease, patience.effects).await?;
        let count = staged.len();
        let sends = staged.into_iter().map(|staged| self.clone().send(staged));
        for result in futures_util::future::join_all(sends).await {
            result?;
        }
        Ok(count)
    }

    async fn send(self, staged: Staged) -> Result<(), StoreError> {
        let Self { shared } = &self;
        let name = staged.name.split('/').next().unwrap_or(&staged.name);
        let later = |tries, why: Box<str>| {
            shared.database.now().map(|now| Sent::Later(now.plus(pause(&shared.terms, tries, 0)), why))
        };
        let sent = match shared.senders.get(name) {
            // Another process may know it. Its tries go on counting, so it does not stay unseen for ever.
            None => later(staged.tries, "no sender of this name here".into())?,
            Some(send) => {
                shared.observe.at(Point::Sending(&staged.name));
                let effect = Effect {
                    name: staged.name.clone(),
                    key: staged.key.clone(),
                    payload: staged.payload.clone(),
                };
                let result = tokio::spawn(send(effect)).await;
                shared.observe.at(Point::Sent(&staged.name));
                match result {
                    Ok(Ok(())) => Sent::Yes,
                    Ok(Err(NotSent::Never(error))) => Sent::Never(error.to_string().into()),
                    Ok(Err(NotSent::Later(error))) => later(staged.tries, error.to_string().into())?,
                    Err(_) => later(staged.tries, "the sender panicked".into())?,
                }
            }
        };
        let sent = match sent {
            Sent::Later(_, why) if staged.tries >= shared.patience.effect_tries_max => Sent::Never(why),
            sent => sent,
        };
        if let Sent::Never(why) = &sent {
            tracing::error!(effect = %staged.name, %why, "a staged effect is given up; a person has to look");
        }
        shared.meters.drained(&sent);
        shared.database.end_staged(&staged, &sent, shared.database.now()?).await.map(drop)
    }
}
