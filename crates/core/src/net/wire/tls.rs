//! TLS 1.3 by rustls: the certificate of a server, and the authority that a client trusts.
//!
//! There is no list of public authorities: a client names a file with the authority, or the certificate itself. TLS costs one
//! more copy, out of the buffer in which rustls decrypts.

use crate::error::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The certificate of a server and its key: PEM files.
#[derive(Debug, Clone)]
pub struct ServerTls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What a client trusts: a PEM file, and the name that must be in the certificate.
#[derive(Debug, Clone)]
pub struct ClientTls {
    pub authority: PathBuf,
    /// `None`: the host that is connected to.
    pub server_name: Option<String>,
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Tls { what: what.to_string() }
}

fn unreadable(what: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    failed(format!(
        "cannot read {what} from {}: {error}. Give the path of a readable PEM file",
        path.display()
    ))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let found = read.map_err(|error| unreadable("certificates", path, error))?;
    if found.is_empty() {
        return Err(failed(format!("there is no certificate in {}", path.display())));
    }
    Ok(found)
}

/// The errors when one side uses TLS and the other does not.
pub const LEARNER_HAS_TLS: &str = "the learner speaks TLS, and this client does not: give it the learner's \
                                   certificate, or its authority's, as ca";
pub const LEARNER_HAS_NO_TLS: &str =
    "this client speaks TLS, and the learner does not: leave ca out, or give the learner's TcpTransport tls";

/// Whether bytes are the start of a record of TLS: its type, and the major number of its version.
pub fn is_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, ..])
}

/// Why a client's TLS failed.
pub fn explain(error: &std::io::Error) -> String {
    use rustls::{Error, InvalidMessage};
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => LEARNER_HAS_NO_TLS.to_owned(),
        _ => error.to_string(),
    }
}

impl ServerTls {
    pub fn config(&self) -> Result<Arc<ServerConfig>> {
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unreadable("a private key", &self.key, error))?;
        let shown = certificates(&self.certificate)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        builder.with_no_client_auth().with_single_cert(shown, key).map(Arc::new).map_err(|error| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            failed(format!("{certificate} and {key} do not make a server: {error}"))
        })
    }
}

impl ClientTls {
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| {
                failed(format!("{} is no authority to trust: {error}", self.authority.display()))
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| failed(format!("'{name}' is not a host name or an address")))
    }
}
