//! Encrypted connections, in the words of PostgreSQL's own clients (`sslmode`, `sslrootcert`).
//!
//! | `sslmode` | encrypted | who the server is |
//! |---|---|---|
//! | `disable`, or none | no | not asked |
//! | `prefer` | where the server offers it | not asked |
//! | `require` | yes | not asked: somebody in between can be the server |
//! | `verify-ca` | yes | signed by an authority of `sslrootcert` |
//! | `verify-full` | yes | the same, and its name is the host's |
//!
//! `sslrootcert` is a file of certificates in PEM. There is no silent default for it: the system's is
//! `/etc/ssl/certs/ca-certificates.crt` on Debian, and most databases have an authority of their own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How much is asked of the server's certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Checks {
    /// Nothing.
    None,
    /// That one of these authorities has signed it.
    Authority(PathBuf),
    /// That it is for this host, too.
    Name(PathBuf),
}

/// Why there is no encryption. No secret is in it.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsFault {
    #[error("sslrootcert {0} cannot be read as certificates in PEM: {1}")]
    Unreadable(PathBuf, rustls::pki_types::pem::Error),
    #[error("sslrootcert {0} holds no certificate")]
    Empty(PathBuf),
    #[error("sslrootcert {0} holds a certificate that no authority can have: {1}")]
    Unusable(PathBuf, String),
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] Error),
}

/// What makes a plain connection an encrypted one.
pub(super) fn connector(checks: &Checks) -> Result<MakeRustlsConnect, TlsFault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authorities = match checks {
        Checks::None => None,
        Checks::Authority(file) | Checks::Name(file) => {
            let roots = Arc::new(roots(file)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            Some(verifier.map_err(|error| TlsFault::Unusable(file.clone(), error.to_string()))?)
        }
    };
    let verifier =
        Verifier { authorities, name: matches!(checks, Checks::Name(_)), provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn roots(file: &Path) -> Result<RootCertStore, TlsFault> {
    let unreadable = |error| TlsFault::Unreadable(file.to_owned(), error);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(unreadable)? {
        let certificate = certificate.map_err(unreadable)?;
        roots.add(certificate).map_err(|error| TlsFault::Unusable(file.to_owned(), error.to_string()))?;
    }
    if roots.is_empty() { Err(TlsFault::Empty(file.to_owned())) } else { Ok(roots) }
}

/// Asks no more of a certificate than the address says. That whoever sent it has its key is checked always.
#[derive(Debug)]
struct Verifier {
    authorities: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        match authorities.verify_server_cert(certificate, between, server, ocsp, now) {
            // The name is looked at last: the authority was found.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
