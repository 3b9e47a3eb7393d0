//! Fuzz target: what a node of a cluster says about slots.

use redis::Value;

use super::slots::SlotMap;
use super::{Address, slot_of};

/// The bytes are the reply to `CLUSTER SLOTS`, or the text of a redirection.
#[test]
fn slots() {
    bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/slots")).for_each(
        |bytes: &[u8]| {
            assert!(slot_of(bytes) < 16_384);
            if let Ok(text) = str::from_utf8(bytes) {
                check_redirection(text);
            }
            let Ok(reply) = redis::parse_redis_value(bytes) else { return };
            let Some(map) = SlotMap::parse(&reply, "source") else { return };
            let masters = map.masters();
            assert!(!masters.is_empty());
            let ranges = ranges(&reply);
            let edges = ranges.iter().flat_map(|range| [range.first, range.last]);
            for slot in edges.chain([0, 16_383]).filter_map(|slot| u16::try_from(slot).ok()) {
                if let Some(master) = map.master_of(slot) {
                    assert!(masters.contains(master));
                    let is_named = |range: &Range| {
                        (range.first..=range.last).contains(&i64::from(slot))
                            && range.host == master.host.as_bytes()
                            && range.port == i64::from(master.port)
                    };
                    assert!(ranges.iter().any(is_named), "{slot} is not one of {master}");
                }
            }
        },
    );
}

/// Slots, and the address of their master.
struct Range {
    first: i64,
    last: i64,
    host: Vec<u8>,
    port: i64,
}

/// Reads the ranges without the checks of the parser.
fn ranges(reply: &Value) -> Vec<Range> {
    let array = |value: &Value| match value {
        Value::Array(values) => values.clone(),
        _ => Vec::new(),
    };
    let range = |range: &Value| match &array(range)[..] {
        [Value::Int(first), Value::Int(last), master, ..] => match &array(master)[..] {
            [host, Value::Int(port), ..] => {
                Some(Range { first: *first, last: *last, host: known_host(host), port: *port })
            }
            _ => None,
        },
        _ => None,
    };
    array(reply).iter().filter_map(range).collect()
}

/// The host of a master. A host that the node does not know is the host that was asked.
fn known_host(host: &Value) -> Vec<u8> {
    match host {
        Value::BulkString(host) if !matches!(&host[..], b"" | b"?") => host.clone(),
        Value::SimpleString(host) if !matches!(&host[..], "" | "?") => host.as_bytes().to_vec(),
        _ => b"source".to_vec(),
    }
}

fn check_redirection(text: &str) {
    if let Some((slot, address)) = Address::parse_redirection(text, "source") {
        let again = format!("{slot} {address}");
        assert_eq!(Address::parse_redirection(&again, "source"), Some((slot, address)));
    }
}
