//! What a request was, as a keyed digest (SPEC 2.4, protocol 4).

/// A keyed, versioned digest of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    algorithm: u8,
    key_id: u32,
    digest: [u8; 32],
}

impl Fingerprint {
    /// A fingerprint read back from a store.
    #[must_use]
    pub const fn from_parts(algorithm: u8, key_id: u32, digest: [u8; 32]) -> Self {
        Self { algorithm, key_id, digest }
    }

    /// Algorithm, key id and digest, for storage.
    #[must_use]
    pub const fn parts(&self) -> (u8, u32, [u8; 32]) {
        (self.algorithm, self.key_id, self.digest)
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint(v{}, key {})", self.algorithm, self.key_id)
    }
}

/// How a stored fingerprint compares with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// The same request.
    Same,
    /// Another request.
    Different,
    /// Made by a version or key that is not known here.
    Unknown,
}

/// How bodies are compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BodyRules {
    /// JSON pointers left out of the comparison (F19).
    pub exclude: Vec<String>,
    /// The body is left out altogether (F21).
    pub ignore_body: bool,
    /// Bound of a decoded body in bytes.
    pub decoded_max: usize,
}
