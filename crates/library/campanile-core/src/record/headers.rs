//! The headers of a record.

use std::fmt;

use bytes::Bytes;

/// An ordered list of headers. Names may repeat, and values may be null.
///
/// The order is that in which the producer added them. If a name repeats, [`get`](Self::get) and
/// [`get_str`](Self::get_str) find the value of the *last* header, as Kafka's Java client and
/// librdkafka do; [`all`](Self::all) iterates over every value.
///
/// `Debug` prints the names and the lengths of the values.
///
/// ```
/// use campanile_core::Record;
///
/// let record = Record::builder("payments", 0, 0)
///     .header("source", "web")
///     .header("source", "app")
///     .null_header("trace")
///     .build();
/// let headers = record.headers();
/// assert_eq!(headers.get("source"), Some(&b"app"[..]));
/// assert_eq!(headers.get_str("source"), Some("app"));
/// assert_eq!(headers.all("source").count(), 2);
/// // a null value is no value; `all` shows that the header exists
/// assert_eq!(headers.get("trace"), None);
/// assert_eq!(headers.all("trace").next(), Some(None));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Option<Bytes>)>);

impl Headers {
    /// Iterates over all headers, in the record's order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, Option<&Bytes>)> {
        self.0.iter().map(|(name, value)| (&**name, value.as_ref()))
    }

    /// Finds the value of the last header with this name. `None` means that there is no such header
    /// or that its value is null. An earlier header is not used in place of a null value.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.last(name).map(|value| &**value)
    }

    /// Finds the value of the last header with this name, as a string. `None` means that there is
    /// no such header, that its value is null, or that it is not UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// Iterates over the values of all headers with this name, in the record's order; `None` is a
    /// null value.
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

    /// Checks whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the same value as [`get`](Self::get), in a form that can be cloned without a copy.
    pub(crate) fn last(&self, name: &str) -> Option<&Bytes> {
        self.iter().rfind(|(n, _)| *n == name).and_then(|(_, value)| value)
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
