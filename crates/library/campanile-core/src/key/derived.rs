//! Keys that are hashes: of an event's key, and of an event's content.

use std::fmt;

use crate::{ConfigError, IdempotencyKey, Namespace};

/// The contexts of the hashes. They are part of every key, and therefore never change.
const DERIVATION: &str = "campanile 2026-11-23 secret of derived keys";
const CONTENT: &str = "campanile 2026-11-23 key of an event's content";

/// The secret of derived keys. It is required to compute the key that [`derive()`] derives from an
/// event's key.
///
/// It belongs to a namespace: [`LockHandle::derive`](crate::LockHandle::derive) uses the secret in the
/// configuration of the idempotency layer. All processes of a namespace need the same secret. Never
/// change it while events are processed, because every derived key changes with it.
///
/// `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct DerivationSecret([u8; 32]);

impl DerivationSecret {
    /// The minimum length of a secret, in bytes.
    pub const MIN_LEN: usize = 32;

    /// Creates a secret from random bytes or from their text, such as the output of
    /// `openssl rand -hex 32`. The bytes are used as they are: a line break at the end counts.
    ///
    /// # Errors
    /// Fails if there are fewer than [`MIN_LEN`](Self::MIN_LEN) bytes. A password can be found by trying,
    /// given an event's key and a key derived from it.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let secret = secret.as_ref();
        if secret.len() < Self::MIN_LEN {
            return Err(ConfigError::new(format!(
                "`derivation_secret` must have at least {} random bytes, got {}; create one with \
                 `openssl rand -hex 32`",
                Self::MIN_LEN,
                secret.len()
            )));
        }
        Ok(Self(blake3::derive_key(DERIVATION, secret)))
    }
}

impl fmt::Debug for DerivationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivationSecret")
    }
}

/// Derives the idempotency key of a downstream call from an event's key, as
/// [`LockHandle::derive`](crate::LockHandle::derive) does, which documents the result.
///
/// For programs without a [`LockHandle`](crate::LockHandle): for a handler that runs without a lock, because
/// a policy lets it, and to find out which key an event has at the receiver.
///
/// ```
/// use campanile_core::{ConfigError, IdempotencyKey, key};
///
/// # fn main() -> Result<(), ConfigError> {
/// let key = IdempotencyKey::new("p-1").expect("not empty");
/// let derived = key::derive(None, &"billing.payments".try_into()?, &key, "charge")?;
/// assert_eq!(derived, "7dd41f85-74e8-8328-bcd5-d6f0e3a157b5");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Fails if the name is empty or has more than 255 bytes.
pub fn derive(
    secret: Option<&DerivationSecret>,
    namespace: &Namespace,
    key: &IdempotencyKey,
    name: &str,
) -> Result<String, ConfigError> {
    const MAX_NAME_LEN: usize = 255;
    if !(1..=MAX_NAME_LEN).contains(&name.len()) {
        return Err(ConfigError::new(format!(
            "the name of a derived key must have 1 to {MAX_NAME_LEN} bytes, got {}",
            name.len()
        )));
    }
    // Without a secret, this is a public constant.
    let secret = secret.map_or_else(|| blake3::derive_key(DERIVATION, b""), |secret| secret.0);
    let mut hasher = blake3::Hasher::new_keyed(&secret);
    for part in [namespace.as_str().as_bytes(), key.as_bytes(), name.as_bytes()] {
        update(&mut hasher, part);
    }
    Ok(uuid(&hasher.finalize()))
}

/// Computes the text of the key of this content.
pub(super) fn of_content(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTENT);
    for part in parts {
        update(&mut hasher, part.as_ref());
    }
    uuid(&hasher.finalize())
}

/// Adds a part after its length, so that `ab` + `c` differs from `a` + `bc`.
fn update(hasher: &mut blake3::Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_be_bytes());
    hasher.update(part);
}

/// Formats the first bits of a hash as a UUID of version 8, which RFC 9562 reserves for such uses.
/// Many receivers accept no longer key, and some accept nothing else.
fn uuid(hash: &blake3::Hash) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn derived(secret: Option<&str>, namespace: &str, key: &str, name: &str) -> String {
        let secret = secret.map(|secret| DerivationSecret::new(secret).unwrap());
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        derive(secret.as_ref(), &namespace.try_into().unwrap(), &key, name).unwrap()
    }

    /// The vectors of the guide.
    #[test]
    fn derived_key_is_the_same_in_every_release() {
        for (secret, namespace, key, name, expected) in [
            (None, "billing.payments", "p-1", "charge", "7dd41f85-74e8-8328-bcd5-d6f0e3a157b5"),
            (None, "billing.payments", "p-1", "receipt", "37d9a6bf-851a-8ebb-822a-9f27b7d3aa98"),
            (None, "refunds", "p-1", "charge", "150bfd1b-a99d-88e5-b1e6-f0162354affc"),
            (
                Some(SECRET),
                "billing.payments",
                "p-1",
                "charge",
                "2e1ae872-712f-836e-bfa3-351154b6a928",
            ),
            (
                Some(SECRET),
                "billing.payments",
                "zahlung-ä",
                "line-7",
                "c9867d6c-6541-865b-8e71-f1ee0813dd9d",
            ),
        ] {
            assert_eq!(derived(secret, namespace, key, name), expected, "{secret:?} {name}");
        }
    }

    #[test]
    fn derived_keys_differ_in_each_argument() {
        let other_secret = SECRET.to_uppercase();
        let mut keys = HashSet::new();
        for secret in [None, Some(SECRET), Some(&*other_secret)] {
            for namespace in ["a", "ab"] {
                for key in ["bc", "c", "cd"] {
                    for name in ["d", "dd", "charge"] {
                        keys.insert(derived(secret, namespace, key, name));
                    }
                }
            }
        }
        assert_eq!(keys.len(), 3 * 2 * 3 * 3);
    }

    #[test]
    fn derived_key_is_text_of_a_uuid() {
        for number in 0..1000 {
            let text = derived(None, "n", &number.to_string(), "charge");
            assert_eq!(text.len(), 36);
            assert!(text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-')), "{text}");
            #[cfg(feature = "uuid")]
            {
                let uuid: uuid::Uuid = text.parse().unwrap();
                assert_eq!(uuid.to_string(), text);
                assert_eq!(
                    (uuid.get_version_num(), uuid.get_variant()),
                    (8, uuid::Variant::RFC4122)
                );
            }
        }
    }

    #[test]
    fn name_has_1_to_255_bytes() {
        let key = IdempotencyKey::new("k").unwrap();
        let derive = |name: &str| derive(None, &"n".try_into().unwrap(), &key, name);
        assert!(derive(&"ä".repeat(127)).is_ok() && derive(&"a".repeat(255)).is_ok());
        for (name, length) in [(String::new(), 0), ("a".repeat(256), 256), ("ä".repeat(128), 256)]
        {
            let error = derive(&name).unwrap_err().to_string();
            let expected =
                format!("the name of a derived key must have 1 to 255 bytes, got {length}");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn short_secret_is_refused_and_none_is_printed() {
        let error = DerivationSecret::new("hunter2").unwrap_err().to_string();
        assert!(error.contains("at least 32") && error.contains("got 7"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(DerivationSecret::new([7; 31]).is_err());
        let secret = DerivationSecret::new([7; 32]).unwrap();
        assert_eq!(format!("{secret:?}"), "DerivationSecret");
    }
}
