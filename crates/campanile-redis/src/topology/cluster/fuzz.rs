//! Fuzz target: what a node of a cluster says about slots.

use redis::Value;

use super::slots::SlotMap;
use super::{Address, slot_of};

/// The bytes are the reply to `CLUSTER SLOTS`, or the text of a redirection.
#[test]
fn slots() {
    bolero::check!(name = "slots").for_each(|bytes: &[u8]| {
        assert!(slot_of(bytes) < 16_384);
        if let Ok(text) = str::from_utf8(bytes) {
            check_redirection(text);
        }
        let Ok(reply) = redis::parse_redis_value(bytes) else { return };
        let Some(map) = SlotMap::parse(&reply, "source") else { return };
        let masters = map.masters();
        assert!(!masters.is_empty());
        let ranges = ranges(&reply);
        let edges = ranges.iter().flat_map(|(first, last, _)| [*first, *last]);
        for slot in edges.chain([0, 16_383]).filter_map(|slot| u16::try_from(slot).ok()) {
            if let Some(master) = map.master_of(slot) {
                assert!(masters.contains(master) && !master.host.is_empty());
                let slot = i64::from(slot);
                let is_named = |(first, last, port): &(i64, i64, i64)| {
                    (first..=last).contains(&&slot) && *port == i64::from(master.port)
                };
                assert!(ranges.iter().any(is_named), "{slot} is not one of {master}");
            }
        }
    });
}

/// The first and the last slot of each range, and the port of its master.
fn ranges(reply: &Value) -> Vec<(i64, i64, i64)> {
    let array = |value: &Value| match value {
        Value::Array(values) => values.clone(),
        _ => Vec::new(),
    };
    let range = |range: &Value| match &array(range)[..] {
        [Value::Int(first), Value::Int(last), master, ..] => match &array(master)[..] {
            [_, Value::Int(port), ..] => Some((*first, *last, *port)),
            _ => None,
        },
        _ => None,
    };
    array(reply).iter().filter_map(range).collect()
}

fn check_redirection(text: &str) {
    if let Some((slot, address)) = Address::parse_redirection(text, "source") {
        let again = format!("{slot} {address}");
        assert_eq!(Address::parse_redirection(&again, "source"), Some((slot, address)));
    }
}
