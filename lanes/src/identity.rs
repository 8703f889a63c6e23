//! Identities: a key pair, fresh per job or lasting, known to the peer by its fingerprint.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use aws_lc_rs::rand::fill;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use pem_rfc7468::LineEnding;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::Error;

/// What a key file begins with (RFC 7468, section 10).
const LABEL: &str = "PRIVATE KEY";

/// SHA-256 of a public key's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of a DER-encoded SubjectPublicKeyInfo.
    pub fn of(spki: &[u8]) -> Fingerprint {
        let mut out = [0; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, spki).as_ref());
        Fingerprint(out)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA256:{}", proto::digest::hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let wrong =
            || format!("'{text}' is not a key: write SHA256: and 64 hex digits, as 'vmferry key' prints it");
        let hex = text.strip_prefix("SHA256:").filter(|h| h.len() == 64 && h.is_ascii()).ok_or_else(wrong)?;
        let mut out = [0; 32];
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(out))
    }
}

/// A key pair that proves one end of a job, or of many. It carries no name and no date: the peer pins
/// the key itself (RFC 7250 raw public keys), so neither a clock nor a certificate can be wrong.
#[derive(Clone)]
pub struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl Identity {
    /// A new key pair (ECDSA P-256), gone with this process.
    ///
    /// # Errors
    /// [`Error::Crypto`] when the system gives no randomness.
    pub fn one_time() -> Result<Identity, Error> {
        Identity::of(new_pkcs8()?)
    }

    /// A new key pair as the text of a key file (PEM of PKCS #8, RFC 5958), and itself.
    ///
    /// # Errors
    /// [`Error::Crypto`] when the system gives no randomness.
    pub fn lasting() -> Result<(Identity, String), Error> {
        let der = new_pkcs8()?;
        let text = pem_rfc7468::encode_string(LABEL, LineEnding::LF, &der)
            .map_err(|e| Error::Crypto(e.to_string()))?;
        Ok((Identity::of(der)?, text))
    }

    /// The key pair of a key file.
    ///
    /// # Errors
    /// [`Error::Crypto`] when the text is not one.
    pub fn from_pem(text: &str) -> Result<Identity, Error> {
        let no_key = |why: &dyn fmt::Display| Error::Crypto(format!("not a private key ({why})"));
        match pem_rfc7468::decode_vec(text.as_bytes()) {
            Ok((LABEL, der)) => Identity::of(der),
            Ok((label, _)) => Err(no_key(&format_args!("but a {label}"))),
            Err(e) => Err(no_key(&e)),
        }
    }

    fn of(pkcs8: Vec<u8>) -> Result<Identity, Error> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8));
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

fn new_pkcs8() -> Result<Vec<u8>, Error> {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
        .and_then(|pair| pair.to_pkcs8v1())
        .map(|der| der.as_ref().to_vec())
        .map_err(|e| Error::Crypto(e.to_string()))
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
