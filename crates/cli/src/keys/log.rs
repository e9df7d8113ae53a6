//! `retrysafe keys log`: who did what, and why.

use clap::Args;
use retrysafe_store::journal::LoggedAct;
use serde_json::{Value, json};

use super::{Common, instant, journals, refused, which::Handle};
use crate::failure::Failure;

/// Print what people did about keys, from the first act on
#[derive(Args, Debug)]
pub(super) struct LogArgs {
    #[command(flatten)]
    common: Common,
    /// Only what came after this number
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    after: u64,
    /// At most so many
    #[arg(long, default_value_t = 100, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub(super) async fn run(args: &LogArgs) -> Result<(), Failure> {
    let place = &args.common.store;
    let store = place.open().await?;
    let acts = journals(&*store, place)?.acts(None, args.after, args.limit as usize).await;
    let acts = acts.map_err(refused(place))?;
    if args.common.json {
        let lines: Vec<_> = acts.iter().map(as_json).collect();
        anstream::println!("{}", json!({ "acts": lines }));
        return Ok(());
    }
    for line in &acts {
        let LoggedAct { number, act, .. } = line;
        anstream::println!(
            "{number}  {}  {} {}  by {}",
            instant(act.at),
            act.act.name(),
            handle(line),
            act.who
        );
        anstream::println!("    why: {}", act.why);
        if let Some(evidence) = &act.evidence {
            anstream::println!("    evidence: {evidence}");
        }
    }
    if acts.is_empty() {
        anstream::println!("{place}: nothing");
    }
    Ok(())
}

fn handle(line: &LoggedAct) -> Handle {
    Handle { namespace: line.address.namespace().clone(), operation: line.operation }
}

fn as_json(line: &LoggedAct) -> Value {
    let act = &line.act;
    json!({
        "number": line.number, "at": instant(act.at), "act": act.act.name(), "key": handle(line).to_string(),
        "who": act.who, "why": act.why, "evidence": act.evidence,
    })
}
