//! `retrysafe keys list`: by account, endpoint, state and age.

use std::time::Duration;

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use retrysafe_core::{
    address::{Address, Namespace},
    contract::read_duration,
    operate::{Standing, standing},
    record::{Record, State},
    time::Wall,
};
use retrysafe_store::{Filter, StateName, Store};
use serde_json::{Value, json};

use super::{Common, about, instant, refused, which};
use crate::failure::Failure;
use crate::place::Place;

/// How many records are read at a time where the store cannot judge by itself.
const PAGE: usize = 256;

/// List keys, by state, endpoint, account and age
///
/// Without --state: what is uncertain, which is what needs a person.
#[derive(Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    common: Common,
    /// Only in this state
    #[arg(long, value_enum, default_value_t = Wanted::Uncertain)]
    state: Wanted,
    /// Only of this endpoint, as `POST /orders`
    #[arg(long, value_name = "METHOD PATH")]
    endpoint: Option<String>,
    /// Only of this hop
    #[arg(long, value_parser = which::namespace)]
    namespace: Option<Namespace>,
    /// Only of this account; several times where the contract joins several parts
    #[arg(long = "account", value_name = "PART")]
    account: Vec<String>,
    /// Only those that were received this long ago, or longer
    #[arg(long, value_name = "TIME", value_parser = read_duration)]
    older_than: Option<Duration>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Go on after this one of an earlier list
    #[arg(long, value_name = "NAMESPACE:OPERATION")]
    after: Option<which::Handle>,
    /// Print accounts and keys as well
    #[arg(long)]
    reveal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Wanted {
    /// Held, or abandoned
    InFlight,
    /// In flight, and nobody keeps its lease
    Abandoned,
    Uncertain,
    Completed,
    All,
}

impl Wanted {
    fn state(self) -> Option<StateName> {
        match self {
            Wanted::InFlight | Wanted::Abandoned => Some(StateName::InFlight),
            Wanted::Uncertain => Some(StateName::Uncertain),
            Wanted::Completed => Some(StateName::Completed),
            Wanted::All => None,
        }
    }
}

type Row = (Address, Record);

pub(super) async fn run(args: &ListArgs) -> Result<(), Failure> {
    let store = args.common.store.open().await?;
    let now = store.now().map_err(refused(&args.common.store))?;
    let (rows, more) = find(args, &*store, now).await?;
    let next = rows.last().filter(|_| more).map(|(address, record)| which::Handle::of(address, record));
    if args.common.json {
        let keys: Vec<_> = rows.iter().map(|row| as_json(row, now, args.reveal)).collect();
        anstream::println!("{}", json!({ "keys": keys, "next": next.map(|next| next.to_string()) }));
        return Ok(());
    }
    if rows.is_empty() {
        anstream::println!("{}: no such key", args.common.store);
        return Ok(());
    }
    anstream::println!("{}", table(&rows, now, args.reveal));
    if let Some(next) = next {
        anstream::println!("more: --after {next}");
    }
    Ok(())
}

/// The rows, and whether there are more.
async fn find(args: &ListArgs, store: &dyn Store, now: Wall) -> Result<(Vec<Row>, bool), Failure> {
    let failed = refused(&args.common.store);
    let account = (!args.account.is_empty()).then(|| which::account(&args.account)).transpose()?;
    let filter = Filter {
        namespace: args.namespace.clone(),
        account,
        state: args.state.state(),
        endpoint: args.endpoint.as_deref().map(Into::into),
    };
    let limit = args.limit as usize;
    let mut cursor = cursor(args, store).await?;
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let page = store.list(&filter, cursor.as_ref(), PAGE).await.map_err(&failed)?;
        let last = page.len() < PAGE;
        cursor = page.last().map(|(address, _)| address.clone());
        rows.extend(page.into_iter().filter(|(_, record)| wanted(args, record, now)));
        if rows.len() > limit || last {
            let more = rows.len() > limit;
            rows.truncate(limit);
            return Ok((rows, more));
        }
    }
}

async fn cursor(args: &ListArgs, store: &dyn Store) -> Result<Option<Address>, Failure> {
    let Some(after) = &args.after else { return Ok(None) };
    let place: &Place = &args.common.store;
    let found = store.locate(&after.namespace, after.operation).await.map_err(refused(place))?;
    found.map(Some).ok_or_else(|| Failure::runtime(format!("{place}: {after} is gone; begin the list anew")))
}

fn wanted(args: &ListArgs, record: &Record, now: Wall) -> bool {
    let old = args.older_than.is_none_or(|least| now.since(record.opened_at) >= least);
    old && (args.state != Wanted::Abandoned || standing(record, now) == Standing::Abandoned)
}

/// What a person looks for in each state.
fn detail(record: &Record, now: Wall) -> String {
    match (&record.state, standing(record, now)) {
        (_, Standing::Held { until }) => format!("its lease ends in {}", about(until.from_now(now))),
        (State::InFlight { lease_until }, _) => format!("since {}", about(now.since(*lease_until))),
        (State::Uncertain { since, why }, _) => {
            format!("{} for {}", super::timeline::because(*why), about(now.since(*since)))
        }
        (State::Completed { outcome, expires_at, .. }, Standing::Completed) => {
            format!("{}, replayed for {}", outcome.status, about(expires_at.from_now(now)))
        }
        (State::Completed { outcome, .. }, _) => format!("{}, its window is over", outcome.status),
    }
}

fn table(rows: &[Row], now: Wall, reveal: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["key", "state", "endpoint", "age", ""];
    if reveal {
        header.extend(["account", "the key itself"]);
    }
    table.set_header(header);
    for (address, record) in rows {
        let mut row = vec![
            which::Handle::of(address, record).to_string(),
            standing(record, now).name().to_owned(),
            record.endpoint.to_string(),
            about(now.since(record.opened_at)),
            detail(record, now),
        ];
        if reveal {
            row.extend([address.account().as_str().to_owned(), address.key().as_str().to_owned()]);
        }
        table.add_row(row);
    }
    table
}

pub(super) fn as_json((address, record): &Row, now: Wall, reveal: bool) -> Value {
    let mut shown = json!({
        "key": which::Handle::of(address, record).to_string(),
        "state": standing(record, now).name(),
        "endpoint": *record.endpoint,
        "recovery": super::timeline::class(record.recovery),
        "attempt": record.attempt.to_string(),
        "fence": record.fence.as_u64(),
        "contract_version": record.contract_version,
        "received_at": instant(record.opened_at),
        "age_ms": u64::try_from(now.since(record.opened_at).as_millis()).unwrap_or(u64::MAX),
    });
    let more = match &record.state {
        State::InFlight { lease_until } => json!({ "lease_until": instant(*lease_until) }),
        State::Uncertain { since, why } => {
            json!({ "uncertain_since": instant(*since), "because": super::timeline::because(*why) })
        }
        State::Completed { outcome, at, expires_at, reap_at, .. } => json!({
            "status": outcome.status, "completed_at": instant(*at), "replayed_until": instant(*expires_at),
            "kept_until": instant(*reap_at), "body_bytes": outcome.body_len(),
        }),
    };
    if let (Some(shown), Value::Object(more)) = (shown.as_object_mut(), more) {
        shown.extend(more);
        if reveal {
            shown.insert("account".into(), address.account().as_str().into());
            shown.insert("idempotency_key".into(), address.key().as_str().into());
        }
    }
    shown
}
