//! The contracts the proofs run under: the defaults of the sample, with the few numbers a proof needs short.

use std::time::Duration;

/// What a proof varies.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) namespace: &'static str,
    /// Crash proofs wait for leases to end, so theirs are short.
    pub(crate) lease: Duration,
    /// How long the gateway waits for the upstream's answer.
    pub(crate) answer_timeout: Duration,
    pub(crate) upstream_deduplicates: bool,
    /// The gateway may ask the shop what became of a key.
    pub(crate) probe: bool,
    /// Accounts come from a token that the gateway verifies itself: local authorisation.
    pub(crate) jwt: bool,
    /// Stripe's error envelope, so that stripe-node does not take a problem for a success.
    pub(crate) stripe_envelope: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            namespace: "proofs",
            lease: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(10),
            upstream_deduplicates: false,
            probe: false,
            jwt: false,
            stripe_envelope: false,
        }
    }
}

/// The environment variable with the secret of the tokens.
pub(crate) const JWT_SECRET_ENV: &str = "RETRYSAFE_PROOFS_JWT_SECRET";
const JWT_SECRET: &str = "a secret that guards nothing but a measurement";
const API_KEY: &str = "source = \"api_key\"\nrotates = false\nscheme = \"Bearer\"";

/// A token that [`Terms::jwt`] accepts, as an `authorization` value, and the secret for the environment.
///
/// # Errors
/// The token cannot be signed.
pub(crate) fn jwt() -> anyhow::Result<(String, &'static str)> {
    // Valid until long after any run.
    let claims = serde_json::json!({ "sub": "bench", "exp": 4_102_444_800_u64 });
    let key = jsonwebtoken::EncodingKey::from_secret(JWT_SECRET.as_bytes())?;
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key)?;
    Ok((format!("Bearer {token}"), JWT_SECRET))
}

/// The paths that take a key.
const ENDPOINTS: &[&str] = &["/orders", "/bench", "/v1/charges", "/v1/payment_intents"];

impl Terms {
    /// The contract as its file's text.
    pub(crate) fn text(&self) -> String {
        let scope = if self.jwt {
            format!("source = \"jwt\"\nalgorithms = [\"HS256\"]\nsecret_env = \"{JWT_SECRET_ENV}\"")
        } else {
            API_KEY.to_owned()
        };
        let mut text = format!(
            "api = \"Proofs\"\nnamespace = \"{}\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n\
             answer_timeout = \"{}ms\"\n\n\
             [scope]\n{scope}\n\n\
             [failures]\npolicy = \"A\"\n\n\
             [windows]\nreplay = \"24h\"\nreap = \"72h\"\nlease = \"{}ms\"\n\n\
             [client]\ndrop_stored_statuses = true\n\n",
            self.namespace,
            self.answer_timeout.as_millis(),
            self.lease.as_millis(),
        );
        if self.stripe_envelope {
            text += "[answers]\ncontent_type = \"application/json\"\n\
                     template = '{\"error\": {\"type\": \"idempotency_error\", \"code\": {{ code }}, \"message\": {{ title }}}}'\n\
                     headers = [{ name = \"Stripe-Should-Retry\", when_retryable = \"true\", when_final = \"false\" }]\n\n";
        }
        for path in ENDPOINTS {
            text += &format!("[[endpoint]]\nmethod = \"POST\"\npath = \"{path}\"\nkey = \"required\"\n");
            if self.upstream_deduplicates {
                text += "upstream_deduplicates = true\n";
            }
            if self.probe {
                text += "\n[endpoint.probe]\npath = \"/operations/{key}?fence={fence}\"\nfound = [200]\nabsent = [404]\n\
                         status_header = \"X-Original-Status\"\nwhen_absent = \"release\"\nfences = true\nattempts = 3\n";
            }
            text += "\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use retrysafe_core::contract::Contract;

    use super::*;

    #[test]
    fn every_variant_is_a_contract() {
        for bits in 0..16 {
            let terms = Terms {
                upstream_deduplicates: bits & 1 > 0,
                probe: bits & 2 > 0,
                stripe_envelope: bits & 4 > 0,
                jwt: bits & 8 > 0,
                ..Terms::default()
            };
            if let Err(faults) = Contract::parse(&terms.text(), "proofs.toml") {
                panic!("{faults}");
            }
        }
    }
}
