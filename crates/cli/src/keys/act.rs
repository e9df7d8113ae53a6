//! `retrysafe keys resume|resolve|release`: what only a person can decide.
//!
//! One way for all three: look, let `core` say whether it is allowed, ask where it may run something twice, and then write the
//! record, the journal's entry and the line of the log in one commit, guarded by what was seen.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use retrysafe_core::{
    address::Address,
    claim::Times,
    contract::{Contract, show},
    ids::AttemptId,
    operate::{self, Refused, standing},
    outcome::{Body, HeaderPair, Outcome},
    record::{Record, RecoveryClass, Write},
    recovery::{Act, Entry, Event, Progress, StepName},
    time::Wall,
};
use retrysafe_store::{
    ErrorKind, Store, StoreError, Written,
    journal::{Journal, NewAct, Notes, WHO_MAX_BYTES, WHY_MAX_BYTES},
};
use serde_json::json;

use super::{
    Common, about, instant, journals, refused,
    timeline::calls,
    which::{Handle, Which},
};
use crate::failure::Failure;
use crate::place::Place;

/// SPEC 3.1, for those who name no contract.
const REPLAY: Duration = Duration::from_secs(24 * 3600);
const REAP: Duration = Duration::from_secs(72 * 3600);
/// The longest body of an outcome that a person gives.
const BODY_MAX: u64 = 1 << 20;

/// Who does it, and why.
#[derive(Args, Debug)]
struct Because {
    /// Why: it goes to the log
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Who does it [default: the user of this process]
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
}

/// Let a completer, or the caller's retry, go on with a request of several steps from its recovery point
///
/// For what was stopped: the provider is up again, the old plan is deployed again. It counts its tries anew, and goes on
/// although its caller may have been told that it failed. A call that may have been made and can neither be asked for nor
/// sent again stops it once more.
#[derive(Args, Debug)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    common: Common,
}

/// It was done: store this outcome, which every retry is answered with from now on
///
/// With --step, for a request of several steps: the call of that step was made, and this is its result. The request goes on
/// with it from there.
#[derive(Args, Debug)]
pub(super) struct ResolveArgs {
    #[command(flatten)]
    which: Which,
    /// The status of the answer
    #[arg(long, value_parser = clap::value_parser!(u16).range(200..=599), required_unless_present = "step")]
    status: Option<u16>,
    /// Resolve the call of this step, and no more
    #[arg(long, value_name = "STEP", requires = "result", conflicts_with_all = ["status", "body", "headers"])]
    step: Option<String>,
    /// A file with the result of that call, as JSON and as the plan expects it; `-`: standard input
    #[arg(long, value_name = "FILE", requires = "step")]
    result: Option<PathBuf>,
    /// A file with the body of the answer; `-`: standard input
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// A header of the answer, as `Content-Type: application/json`; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<HeaderPair>,
    /// What it was found out by: a receipt, a row, a log line. It goes to the log
    #[arg(long, value_name = "TEXT")]
    evidence: String,
    /// The contract, whose windows the answer is kept for [default: replayed for 24h, kept for 72h]
    #[arg(long, env = "RETRYSAFE_CONTRACT", value_name = "FILE")]
    contract: Option<PathBuf>,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    common: Common,
}

/// It was not done: free the key. The next retry runs the request from its beginning
///
/// If it was done after all, it is done twice: calls get other downstream keys, so the provider does not recognise them.
#[derive(Args, Debug)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    which: Which,
    /// What it was found out by. It goes to the log
    #[arg(long, value_name = "TEXT")]
    evidence: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let scene = Scene::look(&args.which, &args.common).await?;
    let write = scene.allowed(operate::resume(&scene.record, fresh()?, scene.now))?;
    scene.carry_out(&write, Act::Resume, &args.because, None).await?;
    scene.tell("a completer or its caller's retry goes on with it from its recovery point");
    Ok(())
}

pub(super) async fn resolve(args: &ResolveArgs) -> Result<(), Failure> {
    if let (Some(step), Some(result)) = (&args.step, &args.result) {
        return resolve_call(args, step, result).await;
    }
    // Without a step it was asked for.
    let Some(status) = args.status else { return Err(Failure::usage("name the --status of the answer")) };
    let body = args.body.as_ref().map(body).transpose()?.unwrap_or_default();
    let scene = Scene::look(&args.which, &args.common).await?;
    let times = times(args.contract.as_ref(), &scene.record)?;
    let outcome = Outcome {
        status,
        headers: args.headers.clone(),
        body: Body::Kept(body.into()),
        trailers: Vec::new(),
    };
    let write = scene.allowed(operate::resolve(&scene.record, outcome, times, scene.now))?;
    scene.carry_out(&write, Act::Resolve, &args.because, Some(&args.evidence)).await?;
    scene.tell(&format!("every retry is answered {status} for {}", show(times.replay)));
    Ok(())
}

/// One call was made, and this is its result: written down as its holder would have, so that the plan goes on behind it.
async fn resolve_call(args: &ResolveArgs, step: &str, result: &PathBuf) -> Result<(), Failure> {
    let result = body(result)?;
    serde_json::from_slice::<serde_json::Value>(&result)
        .map_err(|error| Failure::usage(format!("--result is no JSON, so no plan could read it: {error}")))?;
    let step = StepName::from_stored(step).map_err(|fault| Failure::usage(format!("--step: {fault}")))?;
    let scene = Scene::look(&args.which, &args.common).await?;
    let decided = match Progress::of(&scene.journal) {
        Ok(progress) => operate::resolve_call(&scene.record, &progress, &step, fresh()?, scene.now),
        Err(_) => Err(Refused::NoSuchCall),
    };
    let write = scene.allowed(decided)?;
    let event = Event::Result { step: step.clone(), result: result.into() };
    scene.carry_out_with(&write, Act::Resolve, &args.because, Some(&args.evidence), Some(event)).await?;
    scene.tell(&format!("the result of step {step} is written down, and the request goes on behind it"));
    Ok(())
}

pub(super) async fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let scene = Scene::look(&args.which, &args.common).await?;
    let (write, removal) = scene.allowed(operate::release(&scene.record, fresh()?, scene.now))?;
    if !args.yes {
        scene.confirm()?;
    }
    scene.carry_out(&write, Act::Release, &args.because, args.evidence.as_deref()).await?;
    let removed = scene.store.remove_if(&scene.address, removal).await.map_err(refused(scene.place))?;
    if !removed {
        return Err(Failure::runtime(format!(
            "{}: {} was settled by somebody else in this moment; look again",
            scene.place, scene.handle
        )));
    }
    scene.tell("its key is free: the next retry runs it from its beginning");
    Ok(())
}

/// A key, as it was seen.
struct Scene<'a> {
    place: &'a Place,
    json: bool,
    store: std::sync::Arc<dyn Store>,
    handle: Handle,
    address: Address,
    record: Record,
    journal: Vec<Entry>,
    now: Wall,
}

impl<'a> Scene<'a> {
    async fn look(which: &Which, common: &'a Common) -> Result<Self, Failure> {
        let place = &common.store;
        let store = place.open().await?;
        let (address, record) = which.find(&*store, place).await?;
        let journal = journals(&*store, place)?.journal(record.status_id).await.map_err(refused(place))?;
        let now = store.now().map_err(refused(place))?;
        let handle = Handle::of(&address, &record);
        Ok(Self { place, json: common.json, store, handle, address, record, journal, now })
    }

    fn allowed<T>(&self, decided: Result<T, Refused>) -> Result<T, Failure> {
        decided.map_err(|refused| {
            let until = match refused {
                Refused::Held { until } => format!(" ({})", instant(until)),
                Refused::Completed | Refused::NotOfSteps | Refused::NoSuchCall => String::new(),
            };
            Failure::runtime(format!("{}: {}: {refused}{until}", self.place, self.handle))
        })
    }

    /// One commit: the record, the entry of its journal, the line of the log.
    async fn carry_out(
        &self,
        write: &Write,
        act: Act,
        because: &Because,
        evidence: Option<&str>,
    ) -> Result<(), Failure> {
        self.carry_out_with(write, act, because, evidence, None).await
    }

    /// The same, with what the person found out.
    async fn carry_out_with(
        &self,
        write: &Write,
        act: Act,
        because: &Because,
        evidence: Option<&str>,
        found: Option<Event>,
    ) -> Result<(), Failure> {
        let line = line(act, because, evidence, self.now)?;
        let entries = entries(&self.record, &self.journal, write, &line, found);
        let notes = Notes { act: Some(line), ..Notes::entries(self.record.status_id, entries) };
        match self.journals()?.note_if(&self.address, write, &notes).await {
            Ok(Written::Yes(_)) => Ok(()),
            Ok(Written::No(present)) => {
                let now = present.map_or("gone", |present| standing(&present, self.now).name());
                Err(Failure::runtime(format!(
                    "{}: {} has changed since it was looked at ({now}): nothing was done; look again",
                    self.place, self.handle
                )))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn journals(&self) -> Result<&dyn Journal, Failure> {
        journals(&*self.store, self.place)
    }

    fn failed(&self, error: StoreError) -> Failure {
        let unknown = error.kind() == ErrorKind::Unknown;
        let failure = refused(self.place)(error);
        if unknown {
            return Failure::runtime(format!(
                "{}: it may have been done or not; `retrysafe keys show {}` says which",
                self.place, self.handle
            ));
        }
        failure
    }

    /// Asks a person who is there.
    fn confirm(&self) -> Result<(), Failure> {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                "releasing a key lets the next retry run the request again; say --yes where nobody can be asked",
            ));
        }
        let age = about(self.now.since(self.record.opened_at));
        anstream::println!("{}: {}, received {age} ago", self.handle, self.record.endpoint);
        calls(&self.journal).iter().for_each(|call| anstream::println!("  {call}"));
        anstream::print!(
            "Released, the next retry runs it from its beginning, with new keys for its calls. If it was done, it is done twice.\n\
             Type `release` to do it: "
        );
        std::io::stdout().flush().map_err(Failure::runtime)?;
        let mut said = String::new();
        std::io::stdin().read_line(&mut said).map_err(Failure::runtime)?;
        match said.trim() {
            "release" => Ok(()),
            _ => Err(Failure::runtime("nothing was done")),
        }
    }

    fn tell(&self, what: &str) {
        match self.json {
            true => anstream::println!("{}", json!({ "key": self.handle.to_string(), "done": what })),
            false => anstream::println!("{}: {what}", self.handle),
        }
    }
}

/// What goes to the journal of the operation, if it keeps one: an operator's entry has to follow an opening.
fn entries(
    record: &Record,
    journal: &[Entry],
    write: &Write,
    line: &NewAct,
    found: Option<Event>,
) -> Vec<Entry> {
    let Some(last) = journal.last().filter(|_| record.recovery == RecoveryClass::Phased) else {
        return Vec::new();
    };
    let why = match &line.evidence {
        Some(evidence) => format!("{}; evidence: {evidence}", line.why).into(),
        None => line.why.clone(),
    };
    let event = Event::Operator { who: line.who.clone(), act: line.act, why };
    let entry = |(seq, event)| Entry { seq, attempt: write.next.attempt, at: line.at, event };
    (last.seq.saturating_add(1)..).zip(std::iter::once(event).chain(found)).map(entry).collect()
}

fn line(act: Act, because: &Because, evidence: Option<&str>, at: Wall) -> Result<NewAct, Failure> {
    let who = because.who.clone().unwrap_or_else(user);
    let said = |name: &str, text: &str, most: usize| match text.trim().is_empty() || text.len() > most {
        true => Err(Failure::usage(format!("--{name} takes 1 to {most} bytes"))),
        false => Ok(()),
    };
    said("who", &who, WHO_MAX_BYTES)?;
    said("why", &because.why, WHY_MAX_BYTES)?;
    evidence.map_or(Ok(()), |evidence| said("evidence", evidence, WHY_MAX_BYTES))?;
    Ok(NewAct {
        who: who.into(),
        act,
        why: because.why.as_str().into(),
        evidence: evidence.map(Into::into),
        at,
    })
}

/// The user of this process: the name that its session says, and the number that the system says.
fn user() -> String {
    let number = rustix::process::getuid().as_raw();
    let name = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    match name.filter(|name| !name.is_empty() && name.len() < WHO_MAX_BYTES / 2) {
        Some(name) => format!("{name} (uid {number})"),
        None => format!("uid {number}"),
    }
}

fn fresh() -> Result<AttemptId, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::runtime(format!("the system gave no randomness: {error}")))?;
    Ok(AttemptId::new(u128::from_be_bytes(random)))
}

/// For how long the contract keeps answers of the record's endpoint.
fn times(contract: Option<&PathBuf>, record: &Record) -> Result<Times, Failure> {
    let Some(path) = contract else { return Ok(Times { replay: REPLAY, reap: REAP }) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("the contract {} cannot be read: {error}", path.display()))
    })?;
    let contract = Contract::parse(&text, &path.display().to_string()).map_err(Failure::usage)?;
    let endpoint = contract.endpoints.iter().find(|endpoint| *endpoint.name == *record.endpoint);
    let windows = endpoint.map(|endpoint| &endpoint.windows).ok_or_else(|| {
        Failure::usage(format!("the contract {} has no endpoint {}", path.display(), record.endpoint))
    })?;
    Ok(Times { replay: windows.replay, reap: windows.reap })
}

fn body(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    use std::io::Read as _;
    let failed =
        |error: std::io::Error| Failure::usage(format!("{} cannot be read: {error}", path.display()));
    let mut bytes = Vec::new();
    let mut source: Box<dyn std::io::Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    source.by_ref().take(BODY_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BODY_MAX {
        return Err(Failure::usage(format!("{} is longer than {BODY_MAX} bytes", path.display())));
    }
    Ok(bytes)
}

fn header(text: &str) -> Result<HeaderPair, String> {
    use axum::http::{HeaderName, HeaderValue};
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    let name: HeaderName = name.trim().parse().map_err(|_| "that is no name of a header".to_owned())?;
    let value = HeaderValue::from_str(value.trim()).map_err(|_| "that is no value of a header".to_owned())?;
    // Framing is the server's, and a cookie is one caller's.
    if ["content-length", "transfer-encoding", "connection", "set-cookie"].contains(&name.as_str()) {
        return Err(format!("{name} is not stored with an answer"));
    }
    Ok(HeaderPair { name: name.as_str().into(), value: value.as_bytes().to_vec().into() })
}
