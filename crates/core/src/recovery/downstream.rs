//! Keys for calls further on.

use std::fmt;

use sha2::{Digest, Sha256};

use super::StepName;
use crate::ids::StatusId;

/// How many bytes of the digest make the key: 160 bits, 40 digits.
const BYTES: usize = 20;

/// The idempotency key of one foreign call: the same at every attempt of the same step of the same operation, and of no
/// other.
///
/// It is made of the operation's id, not of the caller's key. After the window the same caller's key is a new request
/// (SPEC 3.3), and a provider that remembers longer than we do must not take it for the old one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DownstreamKey(Box<str>);

impl DownstreamKey {
    /// The key of `step` of the operation `operation`, run by `plan`.
    pub fn derive(operation: StatusId, plan: &str, step: &StepName) -> Self {
        let mut digest = Sha256::new_with_prefix(b"retrysafe downstream key 1");
        digest.update(operation.as_u128().to_be_bytes());
        for part in [plan, step.as_str()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        let digest = digest.finalize();
        Self(digest.iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }

    /// The key that [`DownstreamKey::as_str`] gave.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// What is sent: 40 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Keys stay out of logs.
impl fmt::Debug for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DownstreamKey({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_one_step_of_one_operation() {
        let step = |name: &str| StepName::from_stored(name).unwrap();
        let one = || DownstreamKey::derive(StatusId::new(1), "rides", &step("charge"));
        assert_eq!(one(), one());
        assert_eq!(one().as_str().len(), 40);
        let others = [
            DownstreamKey::derive(StatusId::new(2), "rides", &step("charge")),
            DownstreamKey::derive(StatusId::new(1), "ride", &step("scharge")),
            DownstreamKey::derive(StatusId::new(1), "rides", &step("charge/1")),
            DownstreamKey::derive(StatusId::new(1), "rides", &step("charge/2")),
        ];
        for other in &others {
            assert_ne!(other, &one());
        }
        assert!(!format!("{:?}", one()).contains(one().as_str()));
    }
}
