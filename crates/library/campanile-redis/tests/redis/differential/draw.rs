//! Draws random commands, entries and garbage, weighted so that most of them matter.

use std::time::Duration;

use bytes::{BufMut, Bytes};
use campanile_core::{Details, FencingToken, Fingerprint, Grant, Operation, Owner, Retention};
use fastrand::Rng;

const TOKENS_END: u64 = 1 << 53;

/// The values that a command may be drawn from.
pub(super) struct Sources {
    /// The grant stored under the key.
    pub(super) stored: Option<(FencingToken, Option<Owner>)>,
    /// The previous grant of the key.
    pub(super) stale: Option<Grant>,
    /// The server's clock, in µs.
    pub(super) now: u64,
    /// The floor of an acquire.
    pub(super) floor: FencingToken,
}

pub(super) fn operation(rng: &mut Rng, sources: &Sources) -> Operation {
    // Without an entry, most other commands are answered with Lost.
    let acquires = if sources.stored.is_some() { 30 } else { 80 };
    let verb = rng.u8(..100);
    if verb < acquires {
        let owner = acquirer(rng, sources);
        return Operation::Acquire {
            owner,
            ttl: duration(rng),
            max_attempts: pick(rng, &[0, 1, 2, 3, 5, u16::MAX]),
            fingerprint: fingerprint(rng),
            floor: sources.floor,
            details: details(rng, owner),
        };
    }
    match rng.u8(..75) {
        0..12 => Operation::Renew { grant: grant(rng, sources), ttl: duration(rng) },
        12..26 => {
            let grant = grant(rng, sources);
            Operation::Complete {
                grant,
                attempt: rng.u16(..),
                fingerprint: fingerprint(rng),
                reply: rng.bool().then(|| reply(rng)),
                details: details(rng, grant.owner),
            }
        }
        26..38 => Operation::Fail {
            grant: grant(rng, sources),
            delay: duration(rng),
            last: rng.u8(..4) == 0,
            error: text(rng),
        },
        38..46 => Operation::Release { grant: grant(rng, sources), ran: rng.bool() },
        46..52 => Operation::Cancel { owner: acquirer(rng, sources) },
        52..59 => Operation::GiveUp { grant: grant(rng, sources), reason: text(rng) },
        59..65 => Operation::Redrive { token: grant(rng, sources).token, force: rng.bool() },
        _ => {
            let name = match rng.u8(..8) {
                0 => "n".repeat(rng.usize(60..70)),
                1 => String::new(),
                _ => pick(rng, &["charge", "ship", "é"]).to_owned(),
            };
            let result = match rng.u8(..8) {
                0 => vec![7; rng.usize(65_500..65_600)].into(),
                _ => reply(rng),
            };
            Operation::RecordStep { grant: grant(rng, sources), name: name.into(), result }
        }
    }
}

/// Far enough apart to detect the wrong retention of the three, or that of another command.
pub(super) fn retention(rng: &mut Rng) -> Retention {
    let base = pick(rng, &[1_000, 100_000]);
    Retention {
        attempts: Duration::from_secs(base),
        completed: Duration::from_secs(2 * base),
        failed: Duration::from_secs(3 * base),
    }
}

/// Draws the bytes of an entry with arbitrary fields, including entries that no operation leaves.
pub(super) fn entry(rng: &mut Rng, now: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u8(0xC1);
    bytes.put_u8(pick(rng, &[1, 1, 1, 2, 2, 3, 4]) | (rng.u8(..8) << 3));
    bytes.put_u16(if rng.u8(..4) == 0 { pick(rng, &[0, u16::MAX]) } else { rng.u16(..6) });
    bytes.put_u8(pick(rng, &[0, 1, 7, 8, 9, 255]));
    bytes.put_u8(pick(rng, &[0, 1, 5, 254, 255]));
    let kind = rng.u8(..7);
    bytes.put_u8(kind);
    bytes.put_u8(rng.u8(..));
    bytes.put_u64(match rng.u8(..8) {
        0 => TOKENS_END - rng.u64(1..4),
        1 => rng.u64(..10),
        2 => now + rng.u64(..10_000_000),
        _ => now - rng.u64(..10_000_000),
    });
    bytes.put_u64(if rng.u8(..6) == 0 { 0 } else { pooled_owner(rng).get() });
    bytes.put_u64(fingerprint(rng).map_or(0, Fingerprint::to_bits));
    bytes.put_u32(rng.u32(..));
    bytes.put_u64(at(rng, now));
    put_tail(rng, kind, &mut bytes);
    bytes
}

/// Draws a tail. The steps or details before it often end too late, or with the tail.
fn put_tail(rng: &mut Rng, kind: u8, bytes: &mut Vec<u8>) {
    if kind == 5 {
        let steps = steps(rng);
        let length = match rng.u8(..8) {
            0 => steps.len() + 1 + rng.usize(..20),
            1 => rng.usize(..=steps.len()),
            _ => steps.len(),
        };
        bytes.put_u32(length.try_into().unwrap());
        bytes.extend_from_slice(&steps);
        if rng.u8(..8) > 0 {
            let kind = rng.u8(..7);
            bytes.put_u8(kind);
            put_tail(rng, kind, bytes);
        }
        return;
    }
    let after = reply(rng);
    if matches!(kind, 3 | 4) {
        let details = text(rng);
        let available = details.len() + after.len();
        let length = match rng.u8(..8) {
            0 => available + 1,
            1 => available,
            2 => {
                return bytes
                    .extend_from_slice(&details.as_bytes()[..rng.usize(..2).min(details.len())]);
            }
            _ => details.len(),
        };
        bytes.put_u16(u16::try_from(length).unwrap());
        bytes.extend_from_slice(details.as_bytes());
    }
    bytes.extend_from_slice(&after);
}

/// Draws encoded steps, some of which end too late.
fn steps(rng: &mut Rng) -> Vec<u8> {
    let mut steps = Vec::new();
    for _ in 0..rng.usize(..4) {
        let (name, result) = (pick(rng, &["charge", "ship", ""]), reply(rng));
        let excess = usize::from(rng.u8(..8) == 0);
        steps.put_u8(name.len() as u8);
        steps.extend_from_slice(name.as_bytes());
        steps.put_u32((result.len() + excess) as u32);
        steps.extend_from_slice(&result);
    }
    if rng.u8(..8) == 0 {
        // Ends within a name or the length of a result.
        let step = b"\x06charge\0\0\0\0";
        steps.extend_from_slice(&step[..rng.usize(1..step.len())]);
    }
    steps
}

/// Draws a value that is not an entry but may be close to one.
pub(super) fn garbage(rng: &mut Rng, now: u64) -> Vec<u8> {
    let mut bytes = entry(rng, now);
    match rng.u8(..6) {
        0 => bytes.truncate(rng.usize(..44)),
        1 => bytes[0] = rng.u8(..0xC1),
        2 => bytes[1] = (bytes[1] & !7) | pick(rng, &[0, 5, 6, 7]),
        3 => bytes[1] |= pick(rng, &[64, 128, 192]),
        4 => {
            let close = TOKENS_END + rng.u64(..3);
            let token = if rng.bool() { close } else { rng.u64(TOKENS_END..) };
            bytes[8..16].copy_from_slice(&token.to_be_bytes());
        }
        _ => bytes = text(rng).as_bytes()[..].to_vec(),
    }
    bytes
}

/// Draws an end: just now, soon, never, or around the latest time that a client could ask for.
fn at(rng: &mut Rng, now: u64) -> u64 {
    const HOUR: u64 = 3_600_000_000;
    const DAY: u64 = 24 * HOUR;
    let around = |rng: &mut Rng, time: u64| time - 3_000 + rng.u64(..6_000);
    match rng.u8(..8) {
        0 => rng.u64(..),
        1 => 0,
        2 => around(rng, now + HOUR),
        3 => around(rng, now + DAY),
        4 => now + rng.u64(..2 * DAY),
        5 => pick(rng, &[u64::MAX, 1 << 53, (1 << 53) + 1, i64::MAX as u64]),
        _ => around(rng, now),
    }
}

fn acquirer(rng: &mut Rng, sources: &Sources) -> Owner {
    match (rng.u8(..6), sources.stored.and_then(|(_, owner)| owner)) {
        (0, Some(owner)) => owner,
        (1..=2, _) => pooled_owner(rng),
        _ => Owner::new(rng.u64(1..)).unwrap(),
    }
}

/// Draws one of a few owners, so that they collide.
fn pooled_owner(rng: &mut Rng) -> Owner {
    Owner::new(rng.u64(1..5)).unwrap()
}

/// Usually draws the stored grant; otherwise an older grant, or one that matches only in part.
fn grant(rng: &mut Rng, sources: &Sources) -> Grant {
    let any = Grant { token: token(rng, sources.now), owner: pooled_owner(rng) };
    let Some((token, owner)) = sources.stored else {
        return any;
    };
    let owner = owner.unwrap_or(any.owner);
    match rng.u8(..16) {
        0 => any,
        1 => Grant { token, ..any },
        2 => Grant { owner, ..any },
        3 => sources.stale.unwrap_or(any),
        _ => Grant { token, owner },
    }
}

fn token(rng: &mut Rng, now: u64) -> FencingToken {
    FencingToken::new(now - rng.u64(..1_000_000)).unwrap()
}

/// Draws the floor of a batch, which is rarely ahead of the clock.
pub(super) fn floor(rng: &mut Rng, now: u64) -> FencingToken {
    FencingToken::new(match rng.u8(..32) {
        0 => now + rng.u64(..10_000_000),
        1 => TOKENS_END - rng.u64(1..4),
        2..16 => return token(rng, now),
        _ => 0,
    })
    .unwrap()
}

fn details(rng: &mut Rng, owner: Owner) -> Option<Details> {
    let has_details = rng.u8(..4) > 0;
    has_details.then(|| Details::builder(owner).instance(&text(rng)).build())
}

fn fingerprint(rng: &mut Rng) -> Option<Fingerprint> {
    Fingerprint::from_bits(rng.u64(..3))
}

/// Usually short enough to end within the test; sometimes beyond the protocol's limits.
fn duration(rng: &mut Rng) -> Duration {
    match rng.u8(..8) {
        0 => Duration::ZERO,
        1 => Duration::from_nanos(rng.u64(..3_000_000)),
        2..4 => Duration::from_micros(rng.u64(..20_000)),
        4 => Duration::from_secs(rng.u64(..200_000)),
        5 => pick(rng, &[Duration::MAX, Duration::from_secs(3_600), Duration::from_secs(86_400)]),
        _ => Duration::from_millis(rng.u64(..60_000)),
    }
}

fn reply(rng: &mut Rng) -> Bytes {
    let length = match rng.u8(..16) {
        0 => 20_000,
        1..4 => 0,
        _ => rng.usize(..100),
    };
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// Sometimes longer than is kept, with the cut within a character.
fn text(rng: &mut Rng) -> Box<str> {
    let length = match rng.u8(..4) {
        0 => 0,
        1 => rng.usize(160..200),
        _ => rng.usize(..20),
    };
    let characters = ['a', '\0', 'é', '鐘', '🔔', '\n'];
    std::iter::repeat_with(|| pick(rng, &characters)).take(length).collect::<String>().into()
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}
