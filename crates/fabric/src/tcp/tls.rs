//! Mutual TLS: what a side shows, and whom it believes.
//!
//! A folder holds three files in PEM, named as Kubernetes and cert-manager name them: `ca.crt` (the authority), `tls.crt` (the side's own
//! certificate, with what lies between it and the authority) and `tls.key`. Whoever has a certificate of the authority belongs to the
//! pool, client or server: names in certificates are not compared with addresses, since nodes learn each other's addresses from the
//! directory and move. So the authority should be the pool's own.
//!
//! Files that were replaced are read again, at most a second later, for connections that are made from then on; if they cannot be used, those of
//! before are, and the reason is said.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The files of a folder.
const AUTHORITY: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// What both sides say they speak: other programs that have certificates of the same authority are not talked to.
const PROTOCOL: &[u8] = b"hinterland";
/// The name that every server is asked for; certificates need not have it.
const NAME: &str = "hinterland";
/// How often it is looked whether the files were replaced.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Files of a folder that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS with the files of {}: {reason} (hint: {hint})", folder.display())]
pub struct TlsError {
    folder: PathBuf,
    reason: String,
    hint: &'static str,
}

/// What a side shows to others and asks of them.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    configs: Configs,
    stamps: Option<Stamps>,
    looked: Instant,
    /// Why files that were replaced since are not used.
    problem: Option<String>,
}

#[derive(Debug, Clone)]
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// By which a file that was replaced is known: inode, seconds and nanoseconds of its change, length.
type Stamps = [(u64, i64, i64, u64); 3];

impl Tls {
    /// Reads the three files.
    ///
    /// # Errors
    /// [`TlsError`] if one is missing, is no PEM, or key and certificate are of two pairs.
    pub fn open(folder: &Path) -> Result<Self, TlsError> {
        // Before the files: what is replaced meanwhile is read again.
        let stamps = stamps(folder);
        let configs = read(folder)?;
        let state = State { configs, stamps, looked: Instant::now(), problem: None };
        Ok(Self(Arc::new(Shared { folder: folder.to_owned(), state: Mutex::new(state) })))
    }

    /// The file with the private key of a folder, whose rights should be looked at.
    pub fn key_file(folder: &Path) -> PathBuf {
        folder.join(KEY)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Why files that were replaced are not used, if that is so.
    pub fn problem(&self) -> Option<String> {
        self.look();
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).problem.clone()
    }

    pub(super) fn client(&self) -> Result<ClientConnection, rustls::Error> {
        // The name is a plain DNS name.
        let name = ServerName::try_from(NAME).map_err(|_| rustls::Error::General("a name".to_owned()))?;
        ClientConnection::new(self.look().client, name)
    }

    pub(super) fn server(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(self.look().server)
    }

    /// What is to be used now, after a look at the files.
    fn look(&self) -> Configs {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_INTERVAL {
            state.looked = Instant::now();
            let now = stamps(&self.0.folder);
            if now != state.stamps {
                match read(&self.0.folder) {
                    Ok(configs) => {
                        state.configs = configs;
                        state.problem = None;
                    }
                    Err(error) => state.problem = Some(error.to_string()),
                }
                state.stamps = now;
            }
        }
        state.configs.clone()
    }
}

fn stamps(folder: &Path) -> Option<Stamps> {
    let stamp = |name: &str| {
        let status = std::fs::metadata(folder.join(name)).ok()?;
        Some((status.ino(), status.ctime(), status.ctime_nsec(), status.len()))
    };
    Some([stamp(AUTHORITY)?, stamp(CERTIFICATE)?, stamp(KEY)?])
}

fn read(folder: &Path) -> Result<Configs, TlsError> {
    const FILES: &str =
        "the folder needs ca.crt, tls.crt and tls.key in PEM, as docs/guides/tls.md makes them";
    let failed = |name: &str, reason: &dyn Display, hint: &'static str| TlsError {
        folder: folder.to_owned(),
        reason: format!("{name}: {reason}"),
        hint,
    };
    let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all =
            CertificateDer::pem_file_iter(folder.join(name)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match all {
            Ok(all) if all.is_empty() => Err(failed(name, &"there is no certificate in it", FILES)),
            Ok(all) => Ok(all),
            Err(error) => Err(failed(name, &error, FILES)),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITY)? {
        roots.add(certificate).map_err(|error| failed(AUTHORITY, &error, FILES))?;
    }
    let own = certificates(CERTIFICATE)?;
    let key = PrivateKeyDer::from_pem_file(folder.join(KEY)).map_err(|error| failed(KEY, &error, FILES))?;
    let pair = "tls.key must be the key of the first certificate in tls.crt";
    configs(Arc::new(roots), own, key).map_err(|error| failed(CERTIFICATE, &error, pair))
}

fn configs(
    roots: Arc<RootCertStore>,
    own: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Configs, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bad = |error: &dyn Display| rustls::Error::General(error.to_string());
    let ours = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let verifier = OfAuthority(ours.build().map_err(|error| bad(&error))?, Arc::clone(&provider));
    let versions = &[&rustls::version::TLS13];
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(own.clone(), key.clone_key())?;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.enable_sni = false;
    // A session that is resumed would be believed without a look at certificates that may have ended since.
    client.resumption = Resumption::disabled();
    let theirs = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let theirs = theirs.build().map_err(|error| bad(&error))?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(theirs)
        .with_single_cert(own, key)?;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Configs { client: Arc::new(client), server: Arc::new(server) })
}

/// Believes whoever has a valid certificate of the authority, under whatever name.
#[derive(Debug)]
struct OfAuthority(Arc<WebPkiServerVerifier>, Arc<CryptoProvider>);

impl ServerCertVerifier for OfAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(certificate, between, name, ocsp, now) {
            // Names are looked at last: all else was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}
