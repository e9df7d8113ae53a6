//! From an operation of the plan to requests with keys and texts of their own.

use crate::plan::{HeaderLine, Operation, Plan, Values};
use crate::wire::Filled;

/// Every request carries this header with the run in it, so that its traces can be found and removed.
pub const TAG: &str = "x-retrysafe-gate";

/// Keys and texts of a run: different from all others, and the same again for the same seed.
#[derive(Debug)]
pub struct Ids {
    seed: u64,
    next: u64,
}

impl Ids {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    /// Values of a new operation.
    pub fn fresh(&mut self) -> Values {
        self.next += 1;
        let mut random = fastrand::Rng::with_seed(self.seed ^ self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (high, low) = (random.u64(..), random.u64(..));
        // The form of a random UUID, which every API takes for a key.
        let key = format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48) & 0x3fff,
            low & 0xffff_ffff_ffff
        );
        let nonce = format!("gate-{:06x}-{:06}", self.seed & 0xff_ffff, self.next);
        // Fits what most schemas call an amount.
        let number = 1_000_000 + (self.seed % 1_000) * 1_000_000 + self.next;
        Values { key, id: nonce.clone(), nonce, number }
    }

    /// How many were made.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.next
    }

    /// What the tag says.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("run-{:06x}", self.seed & 0xff_ffff)
    }
}

/// Whether a request carries its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyed {
    /// Where the plan says.
    Yes,
    /// Nowhere.
    No,
}

/// The request of an operation.
#[must_use]
pub fn fill(
    operation: &Operation,
    plan: &Plan,
    values: &Values,
    keyed: Keyed,
    account: Option<&[HeaderLine]>,
    tag: &str,
) -> Filled {
    let replaced = |name: &str| {
        account.is_some_and(|lines| lines.iter().any(|line| line.name.eq_ignore_ascii_case(name)))
    };
    let mut headers: Vec<(String, String)> = Vec::new();
    if let (Keyed::Yes, Some(name)) = (keyed, &plan.key.header) {
        let key = if plan.key.quoted { format!("\"{}\"", values.key) } else { values.key.clone() };
        headers.push((name.clone(), key));
    }
    let own = operation.headers.iter().filter(|line| !replaced(&line.name));
    let lines = own.chain(account.unwrap_or_default());
    headers.extend(lines.map(|line| (line.name.clone(), line.value.fill(values))));
    headers.push((TAG.to_owned(), tag.to_owned()));
    Filled {
        method: operation.method.clone(),
        path: operation.path.fill(values),
        headers,
        body: operation.body.as_ref().map(|body| body.fill(values)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_differ_and_come_again_with_the_seed() {
        let of = |seed| {
            let mut ids = Ids::new(seed);
            (0..1_000).map(|_| ids.fresh()).collect::<Vec<_>>()
        };
        let (one, again, other) = (of(7), of(7), of(8));
        assert_eq!(one, again);
        let keys: BTreeSet<&str> = one.iter().chain(&other).map(|values| values.key.as_str()).collect();
        let nonces: BTreeSet<&str> = one.iter().chain(&other).map(|values| values.nonce.as_str()).collect();
        assert_eq!((keys.len(), nonces.len()), (2_000, 2_000));
        assert!(keys.iter().all(|key| key.len() == 36 && key.as_bytes()[14] == b'4'));
        // An observer that looks for a text must not find it in a longer one.
        assert!(one.windows(2).all(|pair| pair[0].nonce.len() == pair[1].nonce.len()));
    }

    #[test]
    fn a_second_account_replaces_headers_of_the_same_name() {
        let plan = Plan::parse(
            "base = 'http://127.0.0.1'\n[request]\npath = '/o/{{nonce}}'\nheaders = { Authorization = 'a', X = 'x' }\n[key]\nheader = 'Key'\nquoted = true\n[second_account]\nheaders = { authorization = 'b' }\n[[observe]]\nkind = 'log'\nfile = 'f'\n",
            "gates.toml",
        )
        .expect("a plan");
        let values = Values { key: "k".into(), nonce: "n".into(), number: 1, id: "i".into() };
        let filled = fill(&plan.request, &plan, &values, Keyed::Yes, plan.second_account.as_deref(), "t");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            filled.headers,
            [pair("Key", "\"k\""), pair("X", "x"), pair("authorization", "b"), pair(TAG, "t")]
        );
        assert_eq!(filled.path, "/o/n");
        let keyless = fill(&plan.request, &plan, &values, Keyed::No, None, "t");
        assert!(!keyless.headers.iter().any(|(name, _)| name == "Key"));
    }
}
