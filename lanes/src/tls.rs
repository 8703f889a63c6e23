//! TLS 1.3 with pinned raw public keys on both sides.
//!
//! No certificate authority, no names, no dates, no session tickets, no early data: a peer is the
//! holder of the private key behind one fingerprint, or nobody.

use std::sync::Arc;

pub use rustls::ClientConfig;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, PeerIncompatible,
    ServerConfig, SignatureScheme,
};

use crate::Error;
use crate::identity::{Fingerprint, Identity};

/// Label of the exporter that binds a join to its connection.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-vmferry-join";
/// ALPN protocol name: an HTTP client or another service is turned away in the handshake.
const ALPN: &[u8] = b"vmferry";
/// Plaintext that rustls encrypts per call before it asks for the socket, bytes: 16 records make
/// one large write; the default of 64 KiB costs four times the system calls.
pub(crate) const WRITE_BUFFER: usize = 256 << 10;

fn provider() -> CryptoProvider {
    // AES-128-GCM first: the fastest here, and 128 bits outlive a one-time key.
    macro_rules! suites {
        ($library:ident) => {{
            use rustls::crypto::$library::cipher_suite as suite;
            vec![
                suite::TLS13_AES_128_GCM_SHA256,
                suite::TLS13_CHACHA20_POLY1305_SHA256,
                suite::TLS13_AES_256_GCM_SHA384,
            ]
        }};
    }
    let cipher_suites = if wide_aes_without_avx512() { suites!(ring) } else { suites!(aws_lc_rs) };
    CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }
}

/// Whether this CPU has 256-bit AES instructions but no AVX-512 (AMD Zen 3, many desktop CPUs).
/// aws-lc has no AES-GCM for these (its issue 2283): ring's is 2.3 times as fast there. Everywhere
/// else aws-lc is the faster one.
fn wide_aes_without_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("vaes") && has!("vpclmulqdq") && has!("avx2") && !has!("avx512f")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whose keys are believed.
pub type Trust = Arc<dyn Fn(&Fingerprint) -> bool + Send + Sync>;

/// One key alone.
pub fn pin(only: Fingerprint) -> Trust {
    Arc::new(move |shown| *shown == only)
}

/// The sender's configuration: proves `ours`, believes only whom `trust` does.
///
/// # Errors
/// [`Error::Crypto`]
pub fn client(ours: &Identity, trust: Trust) -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::Crypto(e.to_string()))?
        .dangerous() // rustls's word for any verifier of one's own; ours is stricter than a PKI
        .with_custom_certificate_verifier(Arc::new(Pinned(trust)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(ours.key.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// The receiver's configuration: proves `ours`, believes only whom `trust` does.
///
/// # Errors
/// [`Error::Crypto`]
pub fn server(ours: &Identity, trust: Trust) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::Crypto(e.to_string()))?
        .with_client_cert_verifier(Arc::new(Pinned(trust)))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(ours.key.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // The sender never reads on a data lane, so tickets would only lie in its socket.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Whether a TLS error means that the peer's key is not the pinned one.
pub(crate) fn is_wrong_key(error: &TlsError) -> bool {
    matches!(error, TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
}

struct Pinned(Trust);

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pinned(..)")
    }
}

impl Pinned {
    fn check(&self, spki: &[u8]) -> Result<(), TlsError> {
        if (self.0)(&Fingerprint::of(spki)) {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn signature(
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        let spki = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, dss, &algorithms)
    }
}

const SCHEMES: [SignatureScheme; 1] = [SignatureScheme::ECDSA_NISTP256_SHA256];

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Self::signature(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Self::signature(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
