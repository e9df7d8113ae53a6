//! client.4: the client against the server layer, through a proxy that faults at every byte of request and answer.
//!
//! Every call is written down first. One that ends as `OutcomeUnknown` (or given up) is left open, and taken up again as a new
//! process would. At the end each key has one effect in the ledger, which no claim guards, and each answer names it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use retrysafe_client::{
    Answer, Api, Client, Error, Key,
    intents::{Intents, SqliteIntents},
};
use retrysafe_core::{contract::Contract, retry::budget::Rules};
use retrysafe_server::Retrysafe;
use tokio::{net::TcpListener, sync::Semaphore};

use super::{
    proxy::{self, Done, KINDS},
    runtime, transport,
};
use crate::{ledger::Entry, prove::Scale, report::Progress, service, tools::scratch};

const CALLS: usize = 10_000;
const QUICK_CALLS: usize = 250;
const AT_ONCE: usize = 32;
/// Below the time that a swallowed answer would take, above that of any other.
const ATTEMPT: Duration = Duration::from_millis(400);
/// Times that a new process takes up what is open; the faults are over by then.
const RESUMES_MAX: usize = 20;
const CONTRACT: &str = r#"
    api = "Proofs"
    namespace = "offsets"
    longest_retry_chain = "24h"
    unlisted = "pass"
    scope = { source = "api_key", rotates = false }
    failures = { policy = "A" }
    in_flight = { answer = "409", retry_after = "20ms" }

    [client]
    base = "2ms"
    elapsed = "10s"
    drop_stored_statuses = true
    deadline_header = "X-Request-Timeout-Ms"

    [[endpoint]]
    method = "POST"
    path = "/orders"
    key = "required"
"#;

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    unknown: AtomicU64,
    given_up: AtomicU64,
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let calls = scale.of(CALLS, QUICK_CALLS);
    runtime()?.block_on(run(calls, scale.seed))
}

async fn run(calls: usize, seed: u64) -> Result<bool> {
    let server = serve().await?;
    let (address, done) = proxy::start(server, seed).await?;
    let folder = scratch()?;
    let intents = SqliteIntents::open(folder.path().join("intents.db"))?;
    let client = client(address, intents.clone())?;
    // Without faults once, so that the proxy knows how long request and answer are.
    let mut answers = vec![checked(order(&client, 0)?.send().await)?];
    done.set_faults(true);

    let counts = Arc::new(Counts::default());
    answers.extend(all(&client, calls, &counts).await?);
    done.set_faults(false);
    for _ in 0..RESUMES_MAX {
        // A process that is new knows nothing but what was written down.
        let client = self::client(address, intents.clone())?;
        answers.extend(client.resume().await?.answered);
        if intents.open(1).await?.is_empty() {
            break;
        }
    }
    let open = intents.open(calls).await?.len();
    let ledger: Vec<Entry> = serde_json::from_slice(&reqwest_get(server).await?)?;
    judge(&answers, &ledger, open, &counts, &done, calls)
}

/// Everything is sent, some at a time.
async fn all(client: &Client, calls: usize, counts: &Arc<Counts>) -> Result<Vec<(Key, Answer)>> {
    let (places, progress) = (Arc::new(Semaphore::new(AT_ONCE)), Progress::new("calls", calls));
    let mut tasks = tokio::task::JoinSet::new();
    let mut answers = Vec::new();
    for number in 1..calls {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (client, counts) = (client.clone(), Arc::clone(counts));
        tasks.spawn(async move {
            let _place = place;
            let key = Key::from_event("order", number)?;
            match order(&client, number)?.send().await {
                Ok(answer) => {
                    counts.done.fetch_add(1, Ordering::Relaxed);
                    anyhow::Ok(Some((key, answer)))
                }
                Err(Error::OutcomeUnknown(_)) => {
                    counts.unknown.fetch_add(1, Ordering::Relaxed);
                    Ok(None)
                }
                Err(Error::Stopped(_)) => {
                    counts.given_up.fetch_add(1, Ordering::Relaxed);
                    Ok(None)
                }
                Err(Error::Refused(refused)) => bail!("refused on this side: {refused}"),
            }
        });
        while let Some(ended) = tasks.try_join_next() {
            progress.step();
            answers.extend(ended??);
        }
    }
    while let Some(ended) = tasks.join_next().await {
        progress.step();
        answers.extend(ended??);
    }
    Ok(answers)
}

fn order(client: &Client, number: usize) -> Result<retrysafe_client::RequestBuilder<'_>> {
    let request = client.post("/orders").header("authorization", "Bearer shop-1");
    Ok(request.json(&serde_json::json!({ "amount": number }))?.event("order", number_of(number))?.durable())
}

/// `order-0` would be refused: that is what an id looks like that is not there.
fn number_of(number: usize) -> String {
    if number == 0 { "first".into() } else { number.to_string() }
}

fn checked(sent: Result<Answer, Error<bytes::Bytes>>) -> Result<(Key, Answer)> {
    Ok((Key::from_event("order", "first")?, sent.context("the first call, without faults")?))
}

fn judge(
    answers: &[(Key, Answer)],
    ledger: &[Entry],
    open: usize,
    counts: &Counts,
    done: &Done,
    calls: usize,
) -> Result<bool> {
    let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in ledger {
        let key = entry.key.as_deref().context("an effect without a key")?;
        effects.entry(key).or_default().push(&entry.id);
    }
    let twice = effects.values().filter(|ids| ids.len() > 1).count();
    let mut wrong = 0;
    for (key, answer) in answers {
        let id =
            answer.json::<serde_json::Value>().ok().and_then(|body| Some(body["id"].as_str()?.to_owned()));
        let own = effects.get(key.as_str()).and_then(|ids| ids.first());
        wrong += usize::from(answer.status() != 201 || id.as_deref() != own.copied());
    }
    for (kind, count) in KINDS.iter().zip(done.kinds()) {
        println!("  {kind:<14} {count:>7}");
    }
    let ((request, request_all), (answer, answer_all)) = (done.covered(0), done.covered(1));
    println!(
        "  reset at {request} of {request_all} offsets of the request, {answer} of {answer_all} of the answer"
    );
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "  {} answered, {} OutcomeUnknown, {} given up; the last two taken up again",
        count(&counts.done) + 1,
        count(&counts.unknown),
        count(&counts.given_up)
    );
    println!(
        "{calls} calls: {} keys with an effect, {twice} with two, {} answers of which {wrong} wrong, {open} still open",
        effects.len(),
        answers.len()
    );
    // Few calls do not come to every offset.
    let every = calls < CALLS || (request == request_all && answer == answer_all);
    Ok(every
        && effects.len() == calls
        && ledger.len() == calls
        && answers.len() == calls
        && (twice, wrong, open) == (0, 0, 0)
        && count(&counts.unknown) > 0)
}

fn client(address: SocketAddr, intents: SqliteIntents) -> Result<Client> {
    let contract = Contract::parse(CONTRACT, "offsets.toml").map_err(|faults| anyhow::anyhow!("{faults}"))?;
    // The budget would stop what this proof is about; client.3 is about the budget.
    let api = Api::contract(contract).attempt_timeout(ATTEMPT).budget(Rules::NONE);
    let mut headers = reqwest::header::HeaderMap::new();
    headers
        .insert(reqwest::header::AUTHORIZATION, reqwest::header::HeaderValue::from_static("Bearer shop-1"));
    let transport = transport()?.default_headers(headers);
    Ok(Client::builder(api, &format!("http://{address}")).transport(transport).intents(intents).build()?)
}

/// The layer over memory, in front of a handler whose effects are written down apart from it.
async fn serve() -> Result<SocketAddr> {
    let contract = Contract::parse(CONTRACT, "offsets.toml").map_err(|faults| anyhow::anyhow!("{faults}"))?;
    let layer = Retrysafe::builder(contract, service::store("memory")?)
        .fingerprint_keys(service::fingerprint_keys()?)
        .build()?;
    let app = service::router(layer, Duration::ZERO, crate::ledger::Ledger::in_memory());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn reqwest_get(server: SocketAddr) -> Result<Vec<u8>> {
    let client = transport()?.build()?;
    let answer = client.get(format!("http://{server}/ledger")).send().await?.error_for_status()?;
    Ok(answer.bytes().await?.to_vec())
}
