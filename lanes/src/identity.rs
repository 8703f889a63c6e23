//! One-time identities: a fresh key pair per job, known to the peer by its fingerprint.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use aws_lc_rs::rand::fill;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::Error;

/// SHA-256 of a public key's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of a DER-encoded SubjectPublicKeyInfo.
    pub fn of(spki: &[u8]) -> Fingerprint {
        let mut out = [0; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, spki).as_ref());
        Fingerprint(out)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA256:{}", proto::digest::hex(&self.0))
    }
}

/// A key pair that proves one end of one job. It carries no name and no date: the peer pins the
/// key itself (RFC 7250 raw public keys), so neither a clock nor a certificate can be wrong.
#[derive(Clone)]
pub struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl Identity {
    /// A new key pair (ECDSA P-256).
    ///
    /// # Errors
    /// [`Error::Crypto`] when the system gives no randomness.
    pub fn one_time() -> Result<Identity, Error> {
        let pkcs8 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .and_then(|pair| pair.to_pkcs8v1())
            .map_err(|e| Error::Crypto(e.to_string()))?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec()));
        let signer = any_ecdsa_type(&der).map_err(|e| Error::Crypto(e.to_string()))?;
        let spki = signer.public_key().ok_or_else(|| Error::Crypto("the key has no public half".into()))?;
        let fingerprint = Fingerprint::of(&spki);
        // With raw public keys rustls carries the SubjectPublicKeyInfo where a certificate would be.
        let raw = CertificateDer::from(spki.to_vec());
        Ok(Identity { key: Arc::new(CertifiedKey::new(vec![raw], signer)), fingerprint })
    }

    /// What the peer pins.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.fingerprint)
    }
}

/// Fresh random bytes from the cryptographic generator.
///
/// # Errors
/// [`Error::Crypto`] when the system gives no randomness.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut out = [0; N];
    fill(&mut out).map_err(|e| Error::Crypto(e.to_string()))?;
    Ok(out)
}
