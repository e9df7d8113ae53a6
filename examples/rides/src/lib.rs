//! A request of several steps: a ride is created, a card is charged, the ride is confirmed and mail is sent.
//!
//! Kill it anywhere. The retry, or the completer if nobody retries, goes on where it stopped: the card is charged once, the
//! caller gets the answer that was stored, and the mail leaves once the ride is confirmed. Read [`plan`]; the rest is a
//! web service on SQLite, on PostgreSQL and on MariaDB ([`Books`]).

#![forbid(unsafe_code)]

mod books;
pub mod provider;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Extension, Router,
    extract::State,
    routing::{get, post},
};
pub use books::{Books, MARIADB_TABLE, POSTGRES_TABLE};
use provider::{Charge, Payments};
use retrysafe::{
    Contract, FingerprintKeys, Reply, Retrysafe,
    extract::{self, Answer, Keyed},
    recovery::{
        Effect, External, Halt, NotSent, Patience, Plan, Point, Recovery, Request, Shape, Steps, Terms,
    },
};
use serde::{Deserialize, Serialize};

/// The contract as it is shipped.
pub const CONTRACT: &str = include_str!("../retrysafe.toml");

/// For how long the provider of this example de-duplicates, and how much earlier we stop.
const PROVIDER_WINDOW: Duration = Duration::from_secs(24 * 3600);
const PROVIDER_MARGIN: Duration = Duration::from_secs(3600);

/// What a client asks for. All of it is kept with the request, so there is no card number in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewRide {
    /// Where to.
    pub to: String,
    /// What it costs.
    pub cents: u32,
}

/// What was made of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ride {
    /// Its number.
    pub id: i64,
    /// Where to.
    pub to: String,
    /// The provider's receipt.
    pub receipt: String,
}

/// The three steps, and the mail behind the last.
fn plan<D: Books>(payments: Payments) -> Result<Plan<D>> {
    // The provider de-duplicates by our key for a day, and can be asked: a call whose answer was lost is asked for first, and
    // sent again if the provider knows nothing of it.
    let charge = External::resend(PROVIDER_WINDOW, PROVIDER_MARGIN).asking();
    let shape = Shape::new("rides")?.phase("create")?.external("charge", charge)?.phase("confirm")?;
    Ok(Plan::new(shape, move |steps: Steps<D>, request: Request<NewRide>| {
        ride(steps, request, payments.clone())
    }))
}

async fn ride<D: Books>(
    mut steps: Steps<D>,
    request: Request<NewRide>,
    payments: Payments,
) -> Result<Reply, Halt> {
    let Request { principal, fields: new } = request;
    let id = D::create(&mut steps, &principal, &new).await?;
    let asked = payments.clone();
    let charged = steps
        .external_or_ask(
            "charge",
            &Charge { customer: principal.into(), cents: new.cents },
            |call| async move { payments.charge(call.key(), call.body()).await },
            |question| async move { asked.find(question.key()).await },
        )
        .await?;
    match charged {
        provider::Charged::Paid { receipt } => D::confirm(&mut steps, Ride { id, to: new.to, receipt }).await,
        // The provider said no: a result like any other, and the answer of this request for ever.
        provider::Charged::Declined => D::decline(&mut steps, id).await,
    }
}

/// How the service is set up.
pub struct Setup {
    /// [`CONTRACT`], or one with other times.
    pub contract: String,
    /// Where charges and mail go.
    pub provider: std::net::SocketAddr,
    /// The same in all processes, or every retry is a stranger.
    pub fingerprint_keys: FingerprintKeys,
    /// How often and how long a completer tries.
    pub terms: Terms,
    /// How busy it is.
    pub patience: Patience,
    /// Told of every point between which a crash leaves something else behind.
    pub observe: Arc<dyn Fn(Point<'_>) + Send + Sync>,
}

/// The API on `database`, and what completes its abandoned requests.
///
/// # Errors
/// The contract cannot be kept on this database.
pub async fn app<D: Books>(database: Arc<D>, setup: Setup) -> Result<(Router, Recovery<D>)> {
    database.define().await?;
    let contract = Contract::parse(&setup.contract, "retrysafe.toml").context("the contract")?;
    let retrysafe =
        Retrysafe::builder(contract, database.clone()).fingerprint_keys(setup.fingerprint_keys).build()?;
    let payments = Payments::at(setup.provider);
    let (mail, observe) = (payments.clone(), setup.observe);
    let recovery = Recovery::of(&retrysafe, database)
        .plan(plan(payments)?)
        .effect("receipt", move |effect: Effect| {
            let mail = mail.clone();
            async move { mail.send(effect.key(), &effect.payload::<Ride>()?).await.map_err(NotSent::Later) }
        })
        .terms(setup.terms)
        .patience(setup.patience)
        .observe(move |point| observe(point))
        .build()?;
    let router = Router::new()
        .route("/rides", post(create::<D>))
        .with_state(recovery.clone())
        .route("/.retrysafe/status/{id}", get(extract::status))
        .layer(Extension(retrysafe));
    Ok((router, recovery))
}

async fn create<D: Books>(State(recovery): State<Recovery<D>>, keyed: Keyed<NewRide>) -> Answer {
    // Whom it is done for: here the account of the API key, in a real API the id of the user.
    let principal = keyed.account().as_str().to_owned();
    keyed.steps(&recovery, "rides", &principal).await
}
