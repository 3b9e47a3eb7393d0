//! Rows as the bytes of entries: an encoding independent of the store's.

use std::time::{Duration, SystemTime};

use tokio_postgres::Client;

/// The query for the bytes of the unexpired entries of these keys, and when each entry expires, in
/// ms.
const SELECT: &str = "
    SELECT asked.key, floor(extract(epoch FROM e.expires_at) * 1000)::bigint,
        '\\xc1'::bytea
        || substring(int4send(position(e.state::text IN 'PRCF') + 8 * e.giving_up::int
            + 16 * e.permanent_failure::int + 32 * e.released::int) FROM 4)
        || substring(int4send(e.attempt) FROM 3)
        || substring(int4send(e.interrupts) FROM 4) || substring(int4send(e.give_ups) FROM 4)
        || CASE WHEN e.steps IS NOT NULL THEN '\\x05' ELSE kind END
        || '\\x00'::bytea
        || int8send(e.token) || int8send(coalesce(e.owner, 0)) || int8send(coalesce(e.fingerprint, 0))
        || substring(int8send(floor(extract(epoch FROM e.created))::bigint) FROM 5)
        || int8send((extract(epoch FROM e.at) * 1000000)::bigint)
        || coalesce(int4send(octet_length(e.steps)) || e.steps || kind, '')
        || coalesce(substring(int4send(octet_length(e.details)) FROM 3) || e.details, '')
        || coalesce(e.reply, e.error, '')
    FROM unnest($1::bytea[]) AS asked (key)
    JOIN campanile.entry e ON e.namespace = 'tests' AND e.key = asked.key
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.details IS NOT NULL AND e.reply IS NOT NULL THEN '\\x04'::bytea
            WHEN e.details IS NOT NULL THEN '\\x03' WHEN e.reply IS NOT NULL THEN '\\x02'
            WHEN e.error IS NOT NULL THEN '\\x01' ELSE '\\x00' END AS kind
    ) tail
    WHERE e.expires_at > clock_timestamp()";

const INSERT: &str = "
    INSERT INTO campanile.entry (namespace, key, expires_at, state, giving_up, permanent_failure, released, attempt,
        interrupts, give_ups, token, owner, fingerprint, created, at, error, reply, details, steps)
    VALUES ('tests', $1::bytea, $2, $3::\"char\", $4, $5, $6, $7::integer, $8::smallint, $9::smallint,
        $10::bigint, nullif($11::bigint, 0), nullif($12::bigint, 0), $13::timestamptz, $14::timestamptz,
        $15, $16, $17::bytea, $18::bytea)";

/// Reads the stored entries: the key, the expiry in ms, the bytes.
pub(super) async fn read(client: &Client, keys: &[&[u8]]) -> Vec<(Vec<u8>, i64, Vec<u8>)> {
    let rows = client.query(SELECT, &[&keys]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

pub(super) async fn delete(client: &Client, key: &[u8]) {
    client.execute("DELETE FROM campanile.entry WHERE key = $1", &[&key]).await.unwrap();
}

/// Stores the entry with these bytes. It must be one that the table accepts.
pub(super) async fn insert(client: &Client, key: &[u8], bytes: &[u8], until: SystemTime) {
    let number = |from: usize| i64::from_be_bytes(*bytes[from..].first_chunk().unwrap());
    let bits = bytes[1];
    let state = b"PRCF"[usize::from(bits & 7) - 1].cast_signed();
    let attempt = i32::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let created = u32::from_be_bytes(*bytes[32..].first_chunk().unwrap());
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(created.into());
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(number(36).cast_unsigned());
    let (steps, kind, rest) = match split_steps(bytes) {
        Some((steps, kind, rest)) => (Some(steps), kind, rest),
        None => (None, bytes[6], &bytes[44..]),
    };
    let (details, tail) = match kind {
        3 | 4 => split_details(rest).map(|(details, tail)| (Some(details), tail)).unwrap(),
        _ => (None, rest),
    };
    let error = (kind == 1 || (kind == 3 && !tail.is_empty())).then_some(tail);
    let reply = matches!(kind, 2 | 4).then_some(tail);
    let [giving_up, permanent_failure, released] = [8, 16, 32].map(|bit| bits & bit != 0);
    let [interrupts, give_ups] = [bytes[4], bytes[5]].map(i16::from);
    let [token, owner, fingerprint] = [8, 16, 24].map(number);
    client
        .execute(
            INSERT,
            &[
                &key,
                &until,
                &state,
                &giving_up,
                &permanent_failure,
                &released,
                &attempt,
                &interrupts,
                &give_ups,
                &token,
                &owner,
                &fingerprint,
                &created,
                &at,
                &error,
                &reply,
                &details,
                &steps,
            ],
        )
        .await
        .unwrap();
}

/// Removes the parts of an entry that the table rejects: flags and replies in a state that has
/// none, a tail of unknown kind, a time beyond the range of a timestamp.
pub(super) fn storable(mut bytes: Vec<u8>) -> Vec<u8> {
    const LATEST: u64 = 1 << 57;
    let state = bytes[1] & 7;
    bytes[1] &= match state {
        1 => !32,
        2 => !8,
        _ => !(8 | 32),
    };
    // The steps are kept, and the tail behind them is treated like any other.
    let steps = split_steps(&bytes).map(|(steps, kind, _)| (steps.len(), kind));
    let start = steps.map_or(44, |(len, _)| 49 + len);
    let tail_kind = steps.map_or(bytes[6], |(_, kind)| kind);
    let details_end = split_details(&bytes[start..]).map(|(details, _)| start + 2 + details.len());
    let (kind, len) = match (tail_kind, state, details_end) {
        (1, 1 | 2 | 4, _) => (1, bytes.len()),
        (2, 3, _) => (2, bytes.len()),
        (3, 1 | 2 | 4, Some(_)) => (3, bytes.len()),
        (3, 3, Some(end)) => (3, end),
        (4, 3, Some(_)) => (4, bytes.len()),
        _ => (0, start),
    };
    match steps {
        Some(_) => bytes[start - 1] = kind,
        None => bytes[6] = kind,
    }
    bytes[7] = 0;
    bytes.truncate(len);
    let at = u64::from_be_bytes(*bytes[36..].first_chunk().unwrap()).min(LATEST);
    bytes[36..44].copy_from_slice(&at.to_be_bytes());
    bytes
}

/// Splits what follows the header of an entry with steps into them, the kind of the tail and the tail.
fn split_steps(bytes: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (len, rest) = bytes[44..].split_first_chunk().filter(|_| bytes[6] == 5)?;
    let (steps, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (kind, rest) = rest.split_first()?;
    (!steps.is_empty()).then_some((steps, *kind, rest))
}

/// Splits what follows the header of an entry with details.
fn split_details(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*len).into())
}
