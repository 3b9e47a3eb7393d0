//! The recorded results of a handler's steps.

use std::fmt;

use ::bytes::{BufMut, Bytes, BytesMut};

use crate::limits::{MAX_STEP_NAME_BYTES, MAX_STEPS_BYTES};

/// The recorded results of the steps of a key's handler, by name, in the order in which they were
/// recorded. A later attempt uses them instead of running the steps again.
///
/// `Debug` prints only the length, because the results come from the user.
///
/// # Encoding
///
/// A sequence of steps, not empty: the length of the name in one byte, the name in UTF-8, the length of
/// the result in four bytes, big-endian, and the result.
#[derive(Clone, PartialEq, Eq)]
pub struct Steps(Bytes);

impl Steps {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    /// Returns the encoded steps.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Finds the result of a step.
    pub fn get(&self, name: &str) -> Option<Bytes> {
        let mut found = self.iter().filter(|(step, _)| *step == name.as_bytes());
        found.next().map(|(_, result)| self.0.slice_ref(result))
    }

    /// The names of the steps. Invalid UTF-8 is replaced.
    pub fn names(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        self.iter().map(|(name, _)| String::from_utf8_lossy(name))
    }

    /// The names and results, up to the first that cannot be read.
    fn iter(&self) -> impl Iterator<Item = Step<'_>> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (step, after) = split_first(rest)?;
            rest = after;
            Some(step)
        })
    }

    /// Appends a step. `None` if the name or all steps together would exceed their limits, or if the steps
    /// cannot all be read, because a step behind those would not be found.
    pub(crate) fn with(steps: Option<&Self>, name: &str, result: &[u8]) -> Option<Self> {
        let before = steps.map_or(&[][..], Self::as_bytes);
        let readable = steps.map_or(0, |steps| {
            steps.iter().map(|(name, result)| 5 + name.len() + result.len()).sum()
        });
        let len = before.len() + Self::encoded_len(name, result);
        let name_len = u8::try_from(name.len()).ok()?;
        if readable != before.len() || name.len() > MAX_STEP_NAME_BYTES || len > MAX_STEPS_BYTES {
            return None;
        }
        let mut bytes = BytesMut::with_capacity(len);
        bytes.put_slice(before);
        bytes.put_u8(name_len);
        bytes.put_slice(name.as_bytes());
        bytes.put_u32(result.len() as u32);
        bytes.put_slice(result);
        Some(Self(bytes.freeze()))
    }

    /// The number of bytes that a step takes.
    pub(crate) const fn encoded_len(name: &str, result: &[u8]) -> usize {
        1 + name.len() + 4 + result.len()
    }
}

/// A name and a result.
type Step<'a> = (&'a [u8], &'a [u8]);

/// Splits encoded steps into the name and the result of the first, and the others.
fn split_first(bytes: &[u8]) -> Option<(Step<'_>, &[u8])> {
    let (name_len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*name_len))?;
    let (result_len, rest) = rest.split_first_chunk()?;
    let (result, rest) = rest.split_at_checked(u32::from_be_bytes(*result_len) as usize)?;
    Some(((name, result), rest))
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_by_name_in_the_order_of_their_records() {
        let one = Steps::with(None, "reserve", b"r-1").unwrap();
        let two = Steps::with(Some(&one), "charge", b"").unwrap();
        let read = Steps::from_bytes(two.as_bytes());
        assert_eq!(read.get("reserve").as_deref(), Some(&b"r-1"[..]));
        assert_eq!(read.get("charge").as_deref(), Some(&b""[..]));
        assert_eq!(read.get("ship"), None);
        assert_eq!(read.names().collect::<Vec<_>>(), ["reserve", "charge"]);
    }

    #[test]
    fn steps_beyond_the_limits_are_refused() {
        let most = vec![0; MAX_STEPS_BYTES - Steps::encoded_len("s", b"")];
        let full = Steps::with(None, "s", &most).unwrap();
        assert_eq!(full.as_bytes().len(), MAX_STEPS_BYTES);
        assert_eq!(Steps::with(Some(&full), "", b""), None);
        let long = "n".repeat(MAX_STEP_NAME_BYTES);
        assert!(Steps::with(None, &long, b"").is_some());
        assert_eq!(Steps::with(None, &(long + "n"), b""), None);
    }

    #[test]
    fn steps_are_read_up_to_the_first_unreadable_one() {
        let steps = Steps::with(None, "reserve", b"r-1").unwrap();
        let mut bytes = steps.as_bytes().to_vec();
        bytes.extend(b"\x06char");
        let read = Steps::from_bytes(&bytes);
        assert_eq!(read.get("reserve").as_deref(), Some(&b"r-1"[..]));
        assert_eq!(read.names().count(), 1);
        for end in 0..steps.as_bytes().len() {
            assert_eq!(Steps::from_bytes(&steps.as_bytes()[..end]).get("reserve"), None);
        }
    }
}
