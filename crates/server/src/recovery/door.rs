//! The door at which a completer of another process knocks (`retrysafe recover`).
//!
//! A plan is a function of this service, so nobody else can run it. What another process can do is to find what is abandoned
//! and ask: **go on with this operation**. The request is judged, taken over and run here, by the code that the completer in
//! this process runs; who asks decides nothing, and asking twice is asking once.
//!
//! Whoever knows the secret may ask for nothing but that. It is compared without telling how much of it was right.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{HeaderMap, StatusCode, header};
use retrysafe_core::{address::Namespace, ids::StatusId};
use retrysafe_store::{StoreError, journal::Journal};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{Recovery, completer::Done, http::Ended};

/// The shortest secret that is one.
const SECRET_MIN_BYTES: usize = 32;

/// What a process that asks has to know.
#[derive(Clone)]
pub struct DoorSecret([u8; 32]);

/// The secret is too short to be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the secret of the door needs {SECRET_MIN_BYTES} bytes or more; `openssl rand -hex 32` makes one")]
pub struct DoorSecretFault;

impl DoorSecret {
    /// The secret `text`, without the white space around it.
    ///
    /// # Errors
    /// [`DoorSecretFault`]: it is too short.
    pub fn new(text: &str) -> Result<Self, DoorSecretFault> {
        let text = text.trim();
        if text.len() < SECRET_MIN_BYTES {
            return Err(DoorSecretFault);
        }
        Ok(Self(Sha256::digest(text.as_bytes()).into()))
    }

    /// Digests are compared, so that the time it takes tells nothing of the secret.
    fn is_told_by(&self, headers: &HeaderMap) -> bool {
        let told = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = told.and_then(|told| told.strip_prefix("Bearer ")).map(str::trim);
        token.is_some_and(|token| Sha256::digest(token.as_bytes())[..] == self.0)
    }
}

impl std::fmt::Debug for DoorSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DoorSecret(..)")
    }
}

struct Door<D> {
    recovery: Recovery<D>,
    secret: DoorSecret,
    permits: Semaphore,
}

impl<D: Journal> Recovery<D> {
    /// Routes for `retrysafe recover`, to be mounted where only that process comes: `POST /{operation}` goes on with one
    /// abandoned request, `POST /effects` sends staged effects that are due. As many at once as
    /// [`Patience::parallel`](super::Patience::parallel) says; more are told 503.
    ///
    /// ```no_run
    /// # use retrysafe_server::recovery::{DoorSecret, Recovery};
    /// # fn mount<D: retrysafe_store::journal::Journal>(recovery: &Recovery<D>) -> Result<axum::Router, Box<dyn std::error::Error>> {
    /// let secret = DoorSecret::new(&std::fs::read_to_string("recover.secret")?)?;
    /// let router = axum::Router::new().nest("/.retrysafe/recover", recovery.door(secret));
    /// # Ok(router)
    /// # }
    /// ```
    pub fn door(&self, secret: DoorSecret) -> Router {
        let permits = Semaphore::new(self.shared.patience.parallel.max(1));
        let door = Arc::new(Door { recovery: self.clone(), secret, permits });
        Router::new()
            .route("/effects", post(effects::<D>))
            .route("/{operation}", post(go_on::<D>))
            .with_state(door)
    }

    /// Goes on with the operation, if it is abandoned. `None`: there is no such request.
    async fn ask(&self, operation: StatusId) -> Result<Option<&'static str>, StoreError> {
        let Self { shared } = self;
        // A consumer's events are under its own name.
        let consumers = shared.consumers.keys().filter_map(|name| Namespace::new(name).ok());
        for namespace in std::iter::once(shared.retrysafe.contract().namespace.clone()).chain(consumers) {
            let Some(address) = shared.database.locate(&namespace, operation).await? else { continue };
            let Some(record) = shared.database.load(&address).await? else { continue };
            return Ok(Some(became(&self.clone().look_after(address, record).await)));
        }
        Ok(None)
    }
}

/// One word for what became of it.
fn became(done: &Done) -> &'static str {
    match done {
        Done::Left | Done::Waits(_) => "left",
        Done::Lost | Done::Ran(Ended::Stale) => "lost",
        Done::Closed => "closed",
        Done::Stopped | Done::Ran(Ended::Stopped) => "uncertain",
        Done::Ran(Ended::Answered(_)) => "completed",
        Done::Ran(Ended::Later | Ended::Lost(_)) => "later",
    }
}

async fn go_on<D: Journal>(
    State(door): State<Arc<Door<D>>>,
    Path(operation): Path<String>,
    headers: HeaderMap,
) -> Response {
    if !door.secret.is_told_by(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(operation) = operation.parse() else { return StatusCode::NOT_FOUND.into_response() };
    let Ok(_permit) = door.permits.try_acquire() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    match door.recovery.ask(operation).await {
        Ok(Some(became)) => Json(json!({ "became": became })).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => failed(&error),
    }
}

async fn effects<D: Journal>(State(door): State<Arc<Door<D>>>, headers: HeaderMap) -> Response {
    if !door.secret.is_told_by(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(_permit) = door.permits.try_acquire() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    match door.recovery.drain().await {
        Ok(sent) => Json(json!({ "tried": sent })).into_response(),
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) -> Response {
    tracing::warn!(%error, "the store failed a completer that asked");
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_opens() {
        let secret = DoorSecret::new(&format!(" {}\n", "s".repeat(40))).unwrap();
        let told = |value: &str| {
            let headers = [(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect();
            secret.is_told_by(&headers)
        };
        assert!(told(&format!("Bearer {}", "s".repeat(40))));
        for wrong in ["s".repeat(39), "s".repeat(41), String::new()] {
            assert!(!told(&format!("Bearer {wrong}")), "{wrong}");
        }
        assert!(!told(&"s".repeat(40)) && !secret.is_told_by(&HeaderMap::new()));
        assert_eq!(DoorSecret::new("short").unwrap_err(), DoorSecretFault);
        assert_eq!(format!("{secret:?}"), "DoorSecret(..)");
    }
}
