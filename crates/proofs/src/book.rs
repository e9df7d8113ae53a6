//! Reading a server's ledger over HTTP: the evidence of every proof.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use crate::ledger::Entry;
use crate::race::ask;
use crate::wire::Template;

/// The most pages one ledger may have; more is a server that never ends its list.
const MAX_PAGES: usize = 10_000;

/// Ids of the effects by key; effects without a key are under the empty one.
pub(crate) type Effects = BTreeMap<String, Vec<String>>;

/// All effects of a ledger, page by page.
///
/// # Errors
/// The server does not answer, or with something else.
pub(crate) fn effects(server: SocketAddr) -> Result<Effects> {
    let mut effects = Effects::new();
    let mut after = String::from("0");
    for _ in 0..MAX_PAGES {
        let path = format!("/ledger?limit=10000&after={after}");
        let answer = ask(server, Template::plain("GET", server, &path, &[], "").bytes())?;
        if answer.status != 200 {
            bail!("{server} answered {} for its ledger", answer.status);
        }
        let entries: Vec<Entry> = serde_json::from_slice(&answer.body).context("a ledger")?;
        for entry in entries {
            effects.entry(entry.key.unwrap_or_default()).or_default().push(entry.id);
        }
        match answer.header("x-next-after").and_then(|next| std::str::from_utf8(next).ok()) {
            Some(next) => after = next.to_owned(),
            None => return Ok(effects),
        }
    }
    bail!("the ledger of {server} does not end")
}
