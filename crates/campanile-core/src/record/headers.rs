//! The headers of a record.

use std::fmt;

use bytes::Bytes;

/// An ordered list of headers. Names may repeat, and values may be null.
///
/// `Debug` prints the names and the lengths of the values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Option<Bytes>)>);

impl Headers {
    /// Returns an iterator over all headers, in the record's order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, Option<&Bytes>)> {
        self.0.iter().map(|(name, value)| (&**name, value.as_ref()))
    }

    /// Returns the value of the last header with this name, as Kafka's own clients do: `None` if
    /// there is no such header, `Some(None)` if its value is null.
    pub fn last(&self, name: &str) -> Option<Option<&Bytes>> {
        self.iter().rfind(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Returns an iterator over the values of all headers with this name, in the record's order.
    pub fn all<'a>(
        &'a self,
        name: &'a str,
    ) -> impl DoubleEndedIterator<Item = Option<&'a Bytes>> + 'a {
        self.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Returns the number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, name: Box<str>, value: Option<Bytes>) {
        self.0.push((name, value));
    }

    pub(super) fn size(&self) -> usize {
        let header_size = |(name, value): &(Box<str>, Option<Bytes>)| {
            size_of::<(Box<str>, Option<Bytes>)>()
                + name.len()
                + value.as_ref().map_or(0, Bytes::len)
        };
        self.0.iter().map(header_size).sum()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(name, value)| (name, value.map(Bytes::len))))
            .finish()
    }
}
