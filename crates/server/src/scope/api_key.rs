//! Accounts of API keys.
//!
//! The account is a digest of the key, so that no store holds the key itself. Making its text and a copy of that for each
//! request costs more than finding it again, and records of one account can share one text: the accounts seen last are
//! kept, by digest.

use std::sync::{Mutex, TryLockError};

use retrysafe_core::address::Account;
use sha2::{Digest, Sha256};

use super::NoScope;

/// How many accounts are kept at most.
const RECENT_MAX: usize = 256;

/// What stands for an API key.
type KeyDigest = [u8; 32];

/// Finds the accounts of API keys.
pub(super) struct ApiKeys {
    /// Each digest has one place here, which it shares with others. Only whole digests are compared.
    recent: Box<[Mutex<Option<Seen>>]>,
}

/// A digest that was seen, and its account.
type Seen = (KeyDigest, Account);

impl ApiKeys {
    pub(super) fn new() -> Self {
        Self { recent: (0..RECENT_MAX).map(|_| Mutex::new(None)).collect() }
    }

    /// The account of a key and nothing else.
    pub(super) fn account(&self, secret: &str) -> Result<Account, NoScope> {
        let digest = digest(secret);
        let place = &self.recent[usize::from(digest[0]) % RECENT_MAX];
        // Nobody waits for a shortcut.
        let mut place = match place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return made(&digest),
        };
        match &*place {
            Some((seen, account)) if *seen == digest => Ok(account.clone()),
            _ => {
                let account = made(&digest)?;
                *place = Some((digest, account.clone()));
                Ok(account)
            }
        }
    }
}

/// The parts of the account that stand for a key.
pub(super) fn parts(secret: &str) -> [String; 2] {
    ["key".into(), hex(&digest(secret))]
}

fn made(digest: &KeyDigest) -> Result<Account, NoScope> {
    Account::new(&["key", &hex(digest)]).map_err(|_| NoScope)
}

fn digest(secret: &str) -> KeyDigest {
    Sha256::new_with_prefix("retrysafe account v1\0").chain_update(secret).finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_keys_that_share_a_place_keep_their_own_accounts() {
        let keys = ApiKeys::new();
        let secrets: Vec<String> = (0..4 * RECENT_MAX).map(|number| format!("sk_{number}")).collect();
        let places: std::collections::HashSet<u8> = secrets.iter().map(|secret| digest(secret)[0]).collect();
        assert!(places.len() < secrets.len(), "some meet");
        for _ in 0..2 {
            for secret in &secrets {
                let [scheme, text] = parts(secret);
                assert_eq!(keys.account(secret).unwrap(), Account::new(&[&scheme, &text]).unwrap());
            }
        }
    }
}
