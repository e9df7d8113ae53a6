//! The deployment's secrets, by number.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub(super) type HmacSha256 = Hmac<Sha256>;

/// A secret of the deployment, with the number that fingerprints name it by. All processes that share a store share it.
#[derive(Clone)]
pub struct DeploymentKey {
    id: u32,
    /// Already keyed: cloning it saves two compressions for each request.
    mac: HmacSha256,
}

impl DeploymentKey {
    /// The shortest secret: as long as the digest, or guessing the secret is easier than guessing a digest.
    pub const MIN_BYTES: usize = 32;

    /// The secret with number `id`. A number names one secret for as long as records made with it live.
    ///
    /// # Errors
    /// [`SecretTooShort`] below [`DeploymentKey::MIN_BYTES`].
    pub fn new(id: u32, secret: &[u8]) -> Result<Self, SecretTooShort> {
        if secret.len() < Self::MIN_BYTES {
            return Err(SecretTooShort);
        }
        let mac = HmacSha256::new_from_slice(secret).map_err(|_| SecretTooShort)?;
        Ok(Self { id, mac })
    }

    /// The number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// A value by which two processes can tell whether they have the same secret. It tells nothing else: no fingerprint
    /// is made of what it is made of.
    #[must_use]
    pub fn proof(&self) -> [u8; 32] {
        let mut mac = self.mac();
        mac.update(b"retrysafe deployment key proof");
        mac.finalize().into_bytes().into()
    }

    pub(super) fn mac(&self) -> HmacSha256 {
        self.mac.clone()
    }
}

impl fmt::Debug for DeploymentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeploymentKey({})", self.id)
    }
}

/// The secret is short enough to be guessed from a dump of fingerprints; draw a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a deployment key has at least {} bytes", DeploymentKey::MIN_BYTES)]
pub struct SecretTooShort;

/// The secret that new fingerprints are made with, and those that live records were made with (F18).
///
/// To rotate, put a new key in front and keep the old one until the last record made with it has expired.
#[derive(Clone, Debug)]
pub struct FingerprintKeys {
    current: DeploymentKey,
    older: Vec<DeploymentKey>,
}

impl FingerprintKeys {
    /// One key, for making and for verifying.
    #[must_use]
    pub fn new(current: DeploymentKey) -> Self {
        Self { current, older: Vec::new() }
    }

    /// Adds a key that only verifies.
    ///
    /// # Errors
    /// [`KeyIdTaken`] where its number already names another secret here.
    pub fn with_older(mut self, key: DeploymentKey) -> Result<Self, KeyIdTaken> {
        if self.get(key.id).is_some() {
            return Err(KeyIdTaken(key.id));
        }
        self.older.push(key);
        Ok(self)
    }

    /// The key that new fingerprints are made with.
    #[must_use]
    pub fn current(&self) -> &DeploymentKey {
        &self.current
    }

    /// The key with this number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&DeploymentKey> {
        std::iter::once(&self.current).chain(&self.older).find(|key| key.id == id)
    }
}

/// Two deployment keys have one number, so a stored fingerprint would not say which it was made with; renumber one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("deployment key {0} is given twice")]
pub struct KeyIdTaken(pub u32);
