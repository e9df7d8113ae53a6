//! The input of the digest: a sequence that can be read back in one way only (F15).

use hmac::Mac;

use super::keys::HmacSha256;

/// Writes fields into the digest. Byte strings carry their length and choices carry a tag, so `a` then `bc` is never
/// `ab` then `c`, and an absent field is never an empty one.
pub(super) struct Transcript(HmacSha256);

impl Transcript {
    /// Begins with the name of what is being digested, so that the same secret can serve other purposes.
    pub(super) fn new(mac: HmacSha256, domain: &[u8]) -> Self {
        let mut transcript = Self(mac);
        transcript.bytes(domain);
        transcript
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.0.update(&[tag]);
    }

    pub(super) fn count(&mut self, count: usize) {
        self.0.update(&(count as u64).to_be_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    pub(super) fn optional(&mut self, bytes: Option<&[u8]>) {
        self.tag(u8::from(bytes.is_some()));
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }

    pub(super) fn finish(self) -> HmacSha256 {
        self.0
    }
}
