//! Whom a gate believes that they are the API, where the API speaks TLS.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};

/// Authorities: those that browsers trust, or those of one file.
#[derive(Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    file: Option<String>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("file", &self.file).finish_non_exhaustive()
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Trust {}

impl Trust {
    /// The authorities that browsers trust.
    ///
    /// # Errors
    /// The TLS library takes no such configuration: a fault of this crate.
    pub fn public() -> Result<Self, String> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        Ok(Self { config: config(roots)?, file: None })
    }

    /// The authorities whose certificates are in this text, and no others. `file` is its name, for commands that are shown.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn only(pem: &str, file: &str) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        Ok(Self { config: config(roots)?, file: Some(file.to_owned()) })
    }

    /// The file with the authorities, where there is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// For a connection that speaks this protocol.
    pub(crate) fn speaking(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

fn config(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    // By name: what else is in the binary may have installed another provider, or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_a_certificate_is_no_authority() {
        assert_eq!(Trust::only("", "ca.pem"), Err("there is no certificate in it".to_owned()));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(Trust::only(broken, "ca.pem").is_err());
        assert_eq!(Trust::public().expect("roots").file(), None);
    }
}
