//! The second half of main-job.3: the power goes out just before and just after every sync of a traced run.
//!
//! A layer on SQLite answers keyed requests over a disk that writes down every operation; where in that record
//! each effect and each answer fell is noted. Then, for every moment of a cut and several opinions on what an
//! unsynced sector holds, the files are made as the disk would have them, the store is opened again, and every
//! client retries: an answer that had left comes back as it was, and no effect happens a second time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use retrysafe_sim::{Cut, Position, PowerCut, Survivors};
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore, Synchronous};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use super::Scale;
use crate::contract::Terms;
use crate::judge::{Verdict, same};
use crate::report::Progress;
use crate::service::layer;
use crate::tools::scratch;
use crate::wire::{Answer, Key};

const KEYS: usize = 60;
const QUICK_KEYS: usize = 8;
/// Requests at once, so that group commits hold more than one.
const TOGETHER: usize = 8;
const FILE: &str = "keys.db";

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let keys = if scale.quick() { QUICK_KEYS } else { KEYS };
    let run = cut_everywhere(keys, scale.seed, Synchronous::Full)?;
    println!(
        "power cuts: {} keyed writes, {} syncs, {} cuts: {} answers that had left came back as they were, {} effects \
         that had happened did not happen again",
        keys, run.syncs, run.cuts, run.verdict.kinds.success, run.verdict.effects
    );
    for (violation, count) in run.verdict.violations() {
        println!("  VIOLATED {count} times: {violation}");
    }
    Ok(run.verdict.holds())
}

struct Outcome {
    syncs: usize,
    cuts: usize,
    verdict: Verdict,
}

/// What one operation left behind, and when.
struct Done {
    key: Key,
    answer: Answer,
    answered: Position,
}

/// The world outside the store: effects, each with its moment.
struct World {
    power: Option<PowerCut>,
    effects: Mutex<BTreeMap<String, Vec<Option<Position>>>>,
}

impl World {
    fn effects(&self, key: &Key) -> Vec<Option<Position>> {
        let effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
        effects.get(key.as_str()).cloned().unwrap_or_default()
    }
}

async fn create(State(world): State<Arc<World>>, headers: HeaderMap) -> Response {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let moment = world.power.as_ref().map(PowerCut::position);
    let mut effects = world.effects.lock().unwrap_or_else(PoisonError::into_inner);
    let of_key = effects.entry(key.to_owned()).or_default();
    of_key.push(moment);
    let body = axum::Json(serde_json::json!({ "id": format!("{key}-{}", of_key.len()) }));
    (StatusCode::CREATED, [(header::LOCATION, format!("/orders/{key}"))], body).into_response()
}

/// A layer over a store in `folder`, and the handler behind it.
fn app(folder: &Path, synchronous: Synchronous, world: Arc<World>) -> Result<Router> {
    let vfs = world.power.as_ref().map(|power| power.vfs().to_owned());
    let options = SqliteOptions { vfs, synchronous, ..SqliteOptions::new(folder.join(FILE)) };
    let store = SqliteStore::open(options).context("open the store")?;
    let layer = layer(&Terms::default(), Arc::new(store))?;
    Ok(Router::new().route("/orders", post(create)).layer(layer).with_state(world))
}

async fn send(app: Router, key: Key) -> Result<Answer> {
    let request = Request::post("/orders")
        .header("authorization", "Bearer power")
        .header("content-type", "application/json")
        .header("idempotency-key", key.as_str())
        .body(Body::from(r#"{"amount":1}"#))?;
    let response = app.oneshot(request).await?;
    let (parts, body) = response.into_parts();
    let headers =
        parts.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    Ok(Answer { status: parts.status.as_u16(), headers, body: body.collect().await?.to_bytes().to_vec() })
}

/// Runs, then cuts the power at every sync of the run.
fn cut_everywhere(keys: usize, seed: u64, synchronous: Synchronous) -> Result<Outcome> {
    let runtime = Runtime::new()?;
    let scratch = scratch()?;
    let power = PowerCut::register();
    let world = Arc::new(World { power: Some(power), effects: Mutex::default() });
    let done = traced(&runtime, scratch.path(), synchronous, &world, keys, seed)?;
    let Some(power) = &world.power else { anyhow::bail!("the run was not traced") };
    let trace = power.trace();
    let mut outcome = Outcome { syncs: trace.syncs(), cuts: 0, verdict: Verdict::default() };
    let progress = Progress::new("power cuts", outcome.syncs * 2 + 1);
    let mut failed = None;
    trace.replay(|cut| {
        progress.step();
        for survivors in [Survivors::None, Survivors::All, Survivors::Prefix(seed), Survivors::Sectors(seed)]
        {
            outcome.cuts += 1;
            let after = after_cut(&runtime, cut, survivors, &world, &done, &mut outcome.verdict);
            if let Err(error) = after {
                failed.get_or_insert(error);
            }
        }
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

/// The run itself: some keys at a time, over the disk that writes everything down.
fn traced(
    runtime: &Runtime,
    folder: &Path,
    synchronous: Synchronous,
    world: &Arc<World>,
    keys: usize,
    seed: u64,
) -> Result<Vec<Done>> {
    let app = app(folder, synchronous, Arc::clone(world))?;
    let all: Vec<Key> = (0..keys as u64).map(|number| Key::numbered(seed, number)).collect();
    let mut done = Vec::with_capacity(keys);
    for together in all.chunks(TOGETHER) {
        let sent: Vec<_> = together
            .iter()
            .map(|key| {
                let (app, key, world) = (app.clone(), *key, Arc::clone(world));
                runtime.spawn(async move {
                    let answer = send(app, key).await?;
                    let answered = world.power.as_ref().map(PowerCut::position).context("traced")?;
                    anyhow::Ok(Done { key, answer, answered })
                })
            })
            .collect();
        for answer in sent {
            let answered = runtime.block_on(answer)??;
            let status = answered.answer.status;
            anyhow::ensure!(status == 201, "the traced run was answered {status}");
            done.push(answered);
        }
    }
    Ok(done)
}

/// One cut: the store opened again, every client retrying.
fn after_cut(
    runtime: &Runtime,
    cut: &Cut<'_>,
    survivors: Survivors,
    before: &World,
    done: &[Done],
    verdict: &mut Verdict,
) -> Result<()> {
    let folder = scratch()?;
    cut.materialise(survivors, folder.path())?;
    let world = Arc::new(World { power: None, effects: Mutex::default() });
    // What happens after the cut need not survive another one.
    let app = match app(folder.path(), Synchronous::Off, Arc::clone(&world)) {
        Ok(app) => app,
        Err(error) => {
            verdict.note(format!("the store does not open after a cut: {error:#}"));
            return Ok(());
        }
    };
    for operation in done {
        let key = operation.key;
        let had_answered = operation.answered <= cut.position();
        let had_happened = before.effects(&key).iter().flatten().any(|moment| *moment <= cut.position());
        let answer = runtime.block_on(send(app.clone(), key))?;
        if had_answered {
            if same(&answer, &operation.answer) {
                verdict.kinds.success += 1;
            } else {
                verdict.note(format!("an answer that had left is now {}", answer.status));
            }
        }
        if had_happened {
            if world.effects(&key).is_empty() {
                verdict.effects += 1;
            } else {
                verdict.note("an effect happened a second time");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_syncs_passes() {
        let outcome = cut_everywhere(3, 1, Synchronous::Full).expect("runs");
        let violations: Vec<_> = outcome.verdict.violations().map(|(text, _)| text.to_owned()).collect();
        assert_eq!(violations, Vec::<String>::new());
        assert!(outcome.cuts > 0 && outcome.verdict.kinds.success > 0 && outcome.verdict.effects > 0);
    }

    #[test]
    fn a_store_that_does_not_sync_fails() {
        let outcome = cut_everywhere(3, 1, Synchronous::Off).expect("runs");
        let violations: Vec<_> = outcome.verdict.violations().map(|(text, _)| text.to_owned()).collect();
        assert!(violations.iter().any(|text| text.contains("a second time")), "{violations:?}");
    }
}
