//! The hash slots of a cluster and their masters.

use std::collections::BTreeSet;
use std::fmt;

use crc::{CRC_16_XMODEM, Crc};
use redis::{ConnectionAddr, Value};

/// The checksum by which Redis Cluster spreads keys.
const CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key with this hash tag.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    const SLOTS: u16 = 16_384;
    CRC16.checksum(tag) % SLOTS
}

/// The address that a node announces.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
}

impl Address {
    /// The address that a URL names. `None` for a Unix socket.
    pub(crate) fn from_connection_addr(addr: &ConnectionAddr) -> Option<Self> {
        let (host, port) = match addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host, *port)
            }
            _ => return None,
        };
        Some(Self { host: host.as_str().into(), port })
    }

    /// Parses the target of a redirection, `slot host:port`, from the node at `source_host`.
    pub(crate) fn parse_redirection(text: &str, source_host: &str) -> Option<(u16, Self)> {
        let (slot, address) = text.trim().split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        Some((slot.parse().ok()?, Self::announced(host, port.parse().ok()?, source_host)))
    }

    /// The address that the node at `source_host` announces. If the node does not know the host
    /// name, the host is empty or `?`, and stands for the host of the node itself.
    fn announced(host: &str, port: u16, source_host: &str) -> Self {
        let host = if matches!(host, "" | "?") { source_host } else { host };
        Self { host: host.into(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The master of each slot, as one node reports it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct SlotMap {
    /// In ascending order.
    ranges: Vec<SlotRange>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct SlotRange {
    first: u16,
    last: u16,
    master: Address,
}

impl SlotMap {
    /// Parses the reply to `CLUSTER SLOTS`: for each range its first and last slot, its master, and
    /// its replicas. `None` if the reply has another form, or if the node knows of no slots.
    pub(super) fn parse(reply: &Value, source_host: &str) -> Option<Self> {
        let Value::Array(ranges) = reply else {
            return None;
        };
        let ranges: Option<Vec<_>> =
            ranges.iter().map(|range| SlotRange::parse(range, source_host)).collect();
        let mut ranges = ranges.filter(|ranges| !ranges.is_empty())?;
        ranges.sort_by_key(|range| range.first);
        Some(Self { ranges })
    }

    pub(super) fn master_of(&self, slot: u16) -> Option<&Address> {
        let place = self.ranges.partition_point(|range| range.last < slot);
        let range = self.ranges.get(place)?;
        (range.first <= slot).then_some(&range.master)
    }

    /// The masters that serve slots.
    pub(super) fn masters(&self) -> BTreeSet<&Address> {
        self.ranges.iter().map(|range| &range.master).collect()
    }
}

impl SlotRange {
    fn parse(range: &Value, source_host: &str) -> Option<Self> {
        let Value::Array(range) = range else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            Value::Nil => "",
            _ => return None,
        };
        let master = Address::announced(host, u16::try_from(*port).ok()?, source_host);
        Some(Self { first: u16::try_from(*first).ok()?, last: u16::try_from(*last).ok()?, master })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())])
    }

    fn range(first: i64, last: i64, master: Value) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    fn host(name: &str) -> Value {
        Value::BulkString(name.into())
    }

    #[test]
    fn slot_matches_cluster_keyslot() {
        // As `CLUSTER KEYSLOT` computes them.
        for (tag, slot) in [("foo", 12182), ("123456789", 12739), ("payments:07", 13425)] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn slot_map_finds_master_only_within_ranges() {
        let reply = Value::Array(vec![
            range(100, 200, master(host("b"), 2)),
            range(0, 50, master(host("a"), 1)),
        ]);
        let map = SlotMap::parse(&reply, "x").unwrap();
        let master_of = |slot| map.master_of(slot).map(Address::to_string);
        assert_eq!(
            [0, 50, 100, 200].map(master_of).map(Option::unwrap),
            ["a:1", "a:1", "b:2", "b:2"]
        );
        assert_eq!([51, 99, 201].map(master_of), [None, None, None]);
        assert_eq!(map.masters().len(), 2);
    }

    #[test]
    fn missing_host_defaults_to_queried_host() {
        for unknown in [Value::Nil, host(""), host("?"), Value::SimpleString("?".into())] {
            let reply = Value::Array(vec![range(0, 9, master(unknown, 7))]);
            let map = SlotMap::parse(&reply, "10.0.0.1").unwrap();
            assert_eq!(map.master_of(3).unwrap().to_string(), "10.0.0.1:7");
        }
        let redirected = |text| Address::parse_redirection(text, "10.0.0.1").unwrap().1.to_string();
        assert_eq!(redirected("3999 :7"), "10.0.0.1:7");
        assert_eq!(redirected("3999 ?:7"), "10.0.0.1:7");
        assert_eq!(redirected("3999 ::1:7"), "::1:7");
    }

    #[test]
    fn invalid_slots_reply_is_none() {
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 70_000, master(host("a"), 1))]),
            Value::Array(vec![range(0, 1, Value::Nil)]),
        ] {
            assert_eq!(SlotMap::parse(&reply, "x"), None, "{reply:?}");
        }
    }
}
