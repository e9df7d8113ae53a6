//! The input of the digest: a sequence that can be read back in one way only (F15).

use hmac::Mac;

use super::keys::HmacSha256;

/// Writes fields into the digest. Byte strings carry their length and choices carry a tag, so `a` then `bc` is never
/// `ab` then `c`, and an absent field is never an empty one.
pub(super) struct Transcript {
    mac: HmacSha256,
    /// Short fields on their way to the digest, which costs about as much for one byte as for sixty-four.
    pending: [u8; PENDING_BYTES],
    held: usize,
}

const PENDING_BYTES: usize = 512;

impl Transcript {
    /// Begins with the name of what is being digested, so that the same secret can serve other purposes.
    pub(super) fn new(mac: HmacSha256, domain: &[u8]) -> Self {
        let mut transcript = Self { mac, pending: [0; PENDING_BYTES], held: 0 };
        transcript.bytes(domain);
        transcript
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.write(&[tag]);
    }

    pub(super) fn count(&mut self, count: usize) {
        self.write(&(count as u64).to_be_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.write(bytes);
    }

    pub(super) fn optional(&mut self, bytes: Option<&[u8]>) {
        self.tag(u8::from(bytes.is_some()));
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }

    pub(super) fn finish(mut self) -> HmacSha256 {
        self.flush();
        self.mac
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.pending.len() - self.held < bytes.len() {
            self.flush();
        }
        match self.pending.get_mut(self.held..self.held + bytes.len()) {
            Some(free) => {
                free.copy_from_slice(bytes);
                self.held += bytes.len();
            }
            None => self.mac.update(bytes),
        }
    }

    fn flush(&mut self) {
        self.mac.update(&self.pending[..self.held]);
        self.held = 0;
    }
}
