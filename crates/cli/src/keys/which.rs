//! Which key is meant.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    ids::StatusId,
    record::Record,
};
use retrysafe_store::Store;

use super::refused;
use crate::failure::Failure;
use crate::place::Place;

/// A key without saying it: the hop, and the random id of the operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Handle {
    pub(super) namespace: Namespace,
    pub(super) operation: StatusId,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace.as_str(), self.operation)
    }
}

impl FromStr for Handle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = || {
            let (namespace, operation) = text.split_once(':')?;
            Some(Handle { namespace: Namespace::new(namespace).ok()?, operation: operation.parse().ok()? })
        };
        parts().ok_or_else(|| {
            "write NAMESPACE:OPERATION as `retrysafe keys list` prints it, or name --namespace, --account and --key"
                .to_owned()
        })
    }
}

impl Handle {
    pub(super) fn of(address: &Address, record: &Record) -> Self {
        Self { namespace: address.namespace().clone(), operation: record.status_id }
    }
}

/// A key, by its handle or by itself.
#[derive(Args, Debug)]
pub(super) struct Which {
    /// The key, as `list` prints it
    #[arg(value_name = "NAMESPACE:OPERATION", required_unless_present = "key", conflicts_with = "key")]
    handle: Option<Handle>,
    /// The hop of a key that is named by itself
    #[arg(long, requires = "key", value_parser = namespace)]
    namespace: Option<Namespace>,
    /// Whose key it is; several times where the contract joins several parts
    #[arg(long = "account", requires = "key", value_name = "PART")]
    account: Vec<String>,
    /// The key itself. Other users of this machine may see it in the list of processes
    #[arg(long, requires = "namespace", requires = "account", value_parser = key)]
    key: Option<Key>,
}

pub(super) fn namespace(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|fault| fault.to_string())
}

fn key(text: &str) -> Result<Key, String> {
    Key::trusted(text).map_err(|fault| fault.to_string())
}

pub(super) fn account(parts: &[String]) -> Result<Account, Failure> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Account::new(&parts).map_err(|fault| Failure::usage(format!("--account: {fault}")))
}

/// What a key was found to be.
pub(super) struct Found {
    pub(super) address: Option<Address>,
    pub(super) record: Option<Record>,
    /// The operation that was asked for, else the one that is there.
    pub(super) operation: Option<StatusId>,
}

impl Which {
    /// What is there of it, which may be its log alone.
    pub(super) async fn look(&self, store: &dyn Store, place: &Place) -> Result<Found, Failure> {
        let failed = refused(place);
        let address = match (&self.handle, &self.namespace, &self.key) {
            (Some(handle), ..) => store.locate(&handle.namespace, handle.operation).await.map_err(&failed)?,
            (None, Some(namespace), Some(key)) => {
                Some(Address::new(namespace.clone(), account(&self.account)?, key.clone()))
            }
            _ => None,
        };
        let record = match &address {
            Some(address) => store.load(address).await.map_err(&failed)?,
            None => None,
        };
        let asked = self.handle.as_ref().map(|handle| handle.operation);
        // The key may have been used again meanwhile, for another operation.
        let record = record.filter(|record| asked.is_none_or(|asked| asked == record.status_id));
        let operation = asked.or(record.as_ref().map(|record| record.status_id));
        Ok(Found { address, record, operation })
    }

    /// What is there of it, which has to be a record.
    pub(super) async fn find(&self, store: &dyn Store, place: &Place) -> Result<(Address, Record), Failure> {
        let found = self.look(store, place).await?;
        found.address.zip(found.record).ok_or_else(|| self.absent(place))
    }

    pub(super) fn absent(&self, place: &Place) -> Failure {
        let why = match self.handle {
            Some(_) => {
                "no key has this operation: it was released or reaped, or it completed in the transaction of its claim, and \
                 then it is found by --namespace, --account and --key"
            }
            None => "nothing is there for this key: it was never received, or released or reaped",
        };
        Failure::runtime(format!("{place}: {why}"))
    }
}
