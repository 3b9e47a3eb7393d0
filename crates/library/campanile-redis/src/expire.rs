//! Changes when entries expire, for operators.

use std::time::Duration;

use campanile_core::limits::MIN_RETENTION;
use campanile_core::{Entry, ExpireOutcome, Namespace, StoreKey};
use campanile_idempotency::{ExpireStore, StoreError};
use futures_util::future::try_join_all;
use redis::{Cmd, Value, cmd};

use crate::RedisStore;
use crate::bucket::Buckets;
use crate::call::MAX_KEYS;
use crate::failure::Failure;
use crate::key::{entry_slot, write_entry_key};
use crate::router::Router;
use crate::script::milliseconds;

/// Needs a permission more than reading and applying commands, see
/// [`RedisConfig`](crate::RedisConfig#permissions).
impl ExpireStore for RedisStore {
    async fn expire(
        &self,
        entries: &[(StoreKey, Entry)],
        after: Duration,
    ) -> Result<Vec<ExpireOutcome>, StoreError> {
        self.0.call(async |router: Router<'_>| Ok(expire(router, entries, after).await?)).await
    }
}

/// One script call on keys of one namespace and, in a cluster, of one slot.
pub(crate) struct ExpireCall<'a> {
    after: Duration,
    members: Vec<&'a (StoreKey, Entry)>,
}

async fn expire(
    router: Router<'_>,
    entries: &[(StoreKey, Entry)],
    after: Duration,
) -> Result<Vec<ExpireOutcome>, Failure> {
    // Without a cluster, all keys share one call.
    let slot = |index: usize| match router.topology.cluster() {
        Some(_) => entry_slot(&entries[index].0, router.store.buckets),
        None => 0,
    };
    let mut order: Vec<_> = (0..entries.len()).collect();
    order.sort_by_key(|index| slot(*index));
    let slots = order.chunk_by(|a, b| slot(*a) == slot(*b));
    let calls = slots.flat_map(|indices| indices.chunks(MAX_KEYS)).map(async |indices| {
        let members = indices.iter().map(|index| &entries[*index]).collect();
        Ok::<_, Failure>((indices, dispatch(router, ExpireCall { after, members }).await?))
    });
    let mut outcomes = vec![ExpireOutcome::Changed; entries.len()];
    for (indices, answers) in try_join_all(calls).await? {
        for (index, outcome) in indices.iter().zip(answers) {
            outcomes[*index] = outcome;
        }
    }
    Ok(outcomes)
}

/// Sends a call. If its slot is being moved to another node, each key is sent in a call of its own.
async fn dispatch(router: Router<'_>, call: ExpireCall<'_>) -> Result<Vec<ExpireOutcome>, Failure> {
    match router.expire(&call).await {
        Err(Failure::Ask(_) | Failure::TryAgain(_)) if call.has_many_keys() => {
            let mut outcomes = Vec::with_capacity(call.members.len());
            for member in call.members {
                let single = ExpireCall { after: call.after, members: vec![member] };
                outcomes.extend(decode(&router.expire(&single).await?, 1)?);
            }
            Ok(outcomes)
        }
        reply => decode(&reply?, call.members.len()),
    }
}

impl ExpireCall<'_> {
    pub(crate) fn namespace(&self) -> &Namespace {
        self.members[0].0.namespace()
    }

    pub(crate) fn slot(&self, buckets: Buckets) -> u16 {
        entry_slot(&self.members[0].0, buckets)
    }

    pub(crate) fn has_many_keys(&self) -> bool {
        self.members.len() > 1
    }

    /// Sends the text of the script each time, because calls are rare and have many keys.
    pub(crate) fn encode(&self, buckets: Buckets) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(campanile_lua::EXPIRE).arg(self.members.len());
        let mut name = Vec::new();
        for (key, _) in &self.members {
            name.clear();
            write_entry_key(&mut name, key, buckets);
            command.arg(&name);
        }
        let after = if self.after.is_zero() { 0 } else { milliseconds(self.after) };
        command.arg(after).arg(u64::try_from(MIN_RETENTION.as_micros()).expect("a minute"));
        for (_, entry) in &self.members {
            command.arg(&encode_read(entry)[..]);
        }
        command
    }
}

/// Encodes what identifies the entry that was read.
fn encode_read(entry: &Entry) -> [u8; 25] {
    let bytes = entry.to_bytes();
    let mut read = [0; 25];
    // The low bits are the state; the others are flags.
    read[0] = bytes[1] % 8;
    read[1..17].copy_from_slice(&bytes[8..24]);
    read[17..].copy_from_slice(&bytes[36..44]);
    read
}

fn decode(reply: &Value, keys: usize) -> Result<Vec<ExpireOutcome>, Failure> {
    let outcome = |letter: &u8| match letter {
        b'D' => Some(ExpireOutcome::Done),
        b'C' => Some(ExpireOutcome::Changed),
        b'K' => Some(ExpireOutcome::Kept),
        _ => None,
    };
    let outcomes = match reply {
        Value::BulkString(letters) if letters.len() == keys => {
            letters.iter().map(outcome).collect()
        }
        _ => None,
    };
    outcomes.ok_or_else(|| Failure::unexpected("a script did not return a letter for each key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_must_have_one_known_letter_per_key() {
        let decode = |letters: &str, keys| decode(&Value::BulkString(letters.into()), keys);
        let outcomes = [ExpireOutcome::Done, ExpireOutcome::Changed, ExpireOutcome::Kept];
        assert_eq!(decode("DCK", 3).unwrap(), outcomes);
        for (letters, keys) in [("", 1), ("DD", 1), ("D", 2), ("DX", 2)] {
            assert!(decode(letters, keys).is_err(), "{letters:?} for {keys} keys");
        }
    }
}
