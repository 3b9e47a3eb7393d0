//! The stored form of an entry: 44 bytes and a tail.

use std::time::Duration;

use bytes::Bytes;
use campanile_core::{Details, Entry, FencingToken, Operation, State, Unreadable, step};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::check::check;
use crate::draft::{Draft, ME, NOW, OTHER, SECOND, fingerprint, my_grant, owner, time, token};

/// An entry with a recognizable value in every field.
fn full() -> Draft {
    Draft {
        state: State::Retrying,
        giving_up: false,
        permanent_failure: true,
        released: true,
        attempt: 0x0102,
        interrupts: 3,
        give_ups: 4,
        kind: 1,
        spare: 5,
        token: 0x0006_0708_090A_0B0C,
        owner: 0x1112_1314_1516_1718,
        fingerprint: 0x2122_2324_2526_2728,
        created: 0x3132_3334,
        at: 0x4142_4344_4546_4748,
        tail: b"oh".to_vec(),
    }
}

const FULL_BYTES: &[u8] = b"\xC1\x32\x01\x02\x03\x04\x01\x05\
    \x00\x06\x07\x08\x09\x0A\x0B\x0C\x11\x12\x13\x14\x15\x16\x17\x18\
    \x21\x22\x23\x24\x25\x26\x27\x28\x31\x32\x33\x34\x41\x42\x43\x44\x45\x46\x47\x48oh";

#[test]
fn every_field_has_a_fixed_offset() {
    assert_eq!(full().bytes(), FULL_BYTES);
    let entry = Entry::from_bytes(FULL_BYTES).expect("readable");
    assert_eq!(entry.to_bytes(), FULL_BYTES);
    assert_eq!(entry.state(), State::Retrying);
    assert!(!entry.is_give_up() && entry.has_permanent_failure() && entry.is_released());
    assert_eq!(entry.attempt(), 0x0102);
    assert_eq!((entry.interrupts(), entry.give_ups()), (3, 4));
    assert_eq!(entry.token(), token(full().token));
    assert_eq!(entry.owner(), Some(owner(full().owner)));
    assert_eq!(entry.fingerprint(), Some(fingerprint(full().fingerprint)));
    assert_eq!(entry.created(), time(u64::from(full().created) * SECOND));
    assert_eq!(entry.error().as_deref(), Some("oh"));
    assert_eq!(entry.reply(), None);
}

#[test]
fn states_and_flags_have_fixed_bits() {
    let plain = Draft::new(State::Processing, NOW);
    let drafts = [
        (plain.clone(), 0b0000_0001),
        (Draft { giving_up: true, ..plain.clone() }, 0b0000_1001),
        (Draft { permanent_failure: true, ..plain.clone() }, 0b0001_0001),
        (Draft { released: true, ..plain.clone() }, 0b0010_0001),
        (Draft { state: State::Retrying, ..plain.clone() }, 0b0000_0010),
        (Draft { state: State::Completed, ..plain.clone() }, 0b0000_0011),
        (Draft { state: State::Failed, ..plain }, 0b0000_0100),
    ];
    for (draft, bits) in drafts {
        let entry = draft.entry();
        assert_eq!(entry.to_bytes()[1], bits);
        assert_eq!(entry.state(), draft.state);
        assert_eq!(
            (entry.is_give_up(), entry.has_permanent_failure(), entry.is_released()),
            (draft.giving_up, draft.permanent_failure, draft.released)
        );
    }
}

#[test]
fn entry_without_tail_has_44_bytes() {
    let draft = Draft { owner: 0, ..Draft::new(State::Completed, NOW) };
    let entry = draft.entry();
    assert_eq!(entry.to_bytes().len(), 44);
    assert_eq!((entry.owner(), entry.fingerprint(), entry.at()), (None, None, time(NOW)));
    assert_eq!((entry.reply(), entry.error()), (None, None));
}

#[test]
fn unreadable_bytes_report_the_reason() {
    let with = |index: usize, byte: u8| {
        let mut bytes = full().bytes();
        bytes[index] = byte;
        Entry::from_bytes(&bytes)
    };
    assert_eq!(Entry::from_bytes(b""), Err(Unreadable::Short { length: 0 }));
    assert_eq!(Entry::from_bytes(&FULL_BYTES[..43]), Err(Unreadable::Short { length: 43 }));
    assert_eq!(with(0, 0xC2), Err(Unreadable::Version(0xC2)));
    for state in [0, 5, 6, 7] {
        assert_eq!(with(1, 8 + state), Err(Unreadable::State(state)));
    }
    for flag in [64, 128, 192] {
        assert_eq!(with(1, flag + 8 + 3), Err(Unreadable::Flags(flag)));
    }
    assert_eq!(with(9, 0x20), Err(Unreadable::Token)); // above 2^53
    assert_eq!(with(8, 0x80), Err(Unreadable::Token));
    assert!(with(9, 0x1F).is_ok());
}

#[test]
fn unreadable_displays_the_reason() {
    for (reason, expected) in [
        (Unreadable::Short { length: 43 }, "43 bytes, shorter than the header of 44"),
        (Unreadable::Version(0xC2), "first byte is 0xc2, expected 0xc1"),
        (Unreadable::State(5), "unknown state 5"),
        (Unreadable::Flags(64), "unknown flags 0x40"),
        (Unreadable::Token, "the token is 2^53 or greater"),
    ] {
        assert_eq!(reason.to_string(), format!("unreadable entry: {expected}"));
    }
}

#[test]
fn stored_contents_are_never_displayed() {
    let secret = b"secret: 4111 1111 1111 1111 and so on, and so on, and on";
    let unreadable = Entry::from_bytes(secret).expect_err("unknown version");
    assert_eq!(unreadable.to_string(), "unreadable entry: first byte is 0x73, expected 0xc1");
    let draft = Draft::new(State::Completed, NOW).with_reply(b"4111 1111");
    let shown = format!("{:?}", draft.entry());
    assert!(!shown.contains("4111") && shown.contains("reply, 9 bytes"), "{shown}");
}

#[test]
fn unknown_tail_kind_is_kept_and_reads_as_none() {
    // A later kind, and details and steps that are longer than what is there.
    let unreadable_steps =
        [(5, &b"\0\0\0\x03oh"[..]), (5, b"\0\0\0\0\x01oh"), (5, b"\0\0\0\x02oh")];
    let others = [(6, &b"oh"[..]), (255, b""), (3, b""), (3, b"\0"), (4, b"\0\x03oh")];
    for (kind, tail) in others.into_iter().chain(unreadable_steps) {
        let entry = Draft { kind, tail: tail.into(), ..full() }.entry();
        assert_eq!((entry.reply(), entry.error(), entry.details()), (None, None, None));
        assert_eq!(entry.to_bytes()[6], kind);
        assert_eq!(&entry.to_bytes()[44..], tail);
    }
}

#[test]
fn details_are_stored_before_the_tail() {
    let details = Details::builder(owner(ME)).instance("host/1").build();
    let encoded = b"\0\x12\x01\x08\0\0\0\0\0\0\0\x0A\x03\x06host/1";
    for (kind, tail) in [(3, &b""[..]), (3, b"no funds"), (4, b""), (4, b"done")] {
        let entry = Draft { kind, tail: [encoded, tail].concat(), ..full() }.entry();
        assert_eq!(entry.details(), Some(&details));
        let text = (!tail.is_empty()).then(|| str::from_utf8(tail).unwrap());
        assert_eq!(entry.error().as_deref(), text.filter(|_| kind == 3));
        assert_eq!(entry.reply().map(|reply| &reply[..]), Some(tail).filter(|_| kind == 4));
        assert_eq!(&entry.to_bytes()[44..], [encoded, tail].concat());
    }
}

#[test]
fn steps_are_stored_before_another_tail() {
    let details = Details::builder(owner(ME)).instance("host/1").build();
    let encoded = b"\0\x12\x01\x08\0\0\0\0\0\0\0\x0A\x03\x06host/1";
    let step = b"\0\0\0\x0E\x06charge\0\0\0\x03c-1";
    for (kind, tail) in [
        (0, vec![]),
        (1, b"no funds".to_vec()),
        (3, encoded.to_vec()),
        (3, [&encoded[..], b"no funds"].concat()),
        (9, b"oh".to_vec()),
    ] {
        let stored = [&step[..], &[kind], &tail].concat();
        let draft = Draft { kind, tail, ..full() };
        let entry = draft.clone().with_step("charge", b"c-1").entry();
        assert_eq!((entry.to_bytes()[6], &entry.to_bytes()[44..]), (5, &stored[..]));
        let charge = entry.steps().and_then(|steps| steps.get("charge"));
        assert_eq!(charge.as_deref(), Some(&b"c-1"[..]));
        assert_eq!(entry.error(), draft.entry().error());
        assert_eq!(entry.details(), (kind == 3).then_some(&details));
    }
}

#[test]
fn details_of_a_grant_replace_those_of_an_earlier_one() {
    let of = |instance| Details::builder(owner(ME)).instance(instance).build();
    let acquire = |details| Operation::Acquire {
        owner: owner(ME),
        ttl: Duration::from_secs(30),
        max_attempts: 3,
        fingerprint: None,
        floor: FencingToken::ZERO,
        details,
    };
    let due = Draft { owner: OTHER, ..Draft::new(State::Retrying, NOW) };
    let stored = |instance| [&[0, 18][..], of(instance).as_bytes()].concat();
    let with_details =
        |kind, tail: &[u8]| Draft { kind, tail: [&stored("host/1"), tail].concat(), ..due.clone() };
    let new = || Some(of("host/2"));
    for (before, details, expected, kind, tail) in [
        (due.clone(), new(), new(), 3, stored("host/2")),
        (due.clone(), None, None, 0, vec![]),
        (with_details(3, b""), None, Some(of("host/1")), 3, stored("host/1")),
        (with_details(3, b"oh"), new(), new(), 3, [&stored("host/2"), &b"oh"[..]].concat()),
        // An empty error is none, and details cannot be stored before a tail of an unknown kind.
        (due.clone().with_error(""), new(), new(), 3, stored("host/2")),
        (Draft { kind: 9, tail: b"oh".to_vec(), ..due.clone() }, new(), None, 9, b"oh".to_vec()),
    ] {
        let (entry, _) = step(Some(before.entry()), &acquire(details), time(NOW));
        let entry = entry.expect("granted");
        assert_eq!(entry.details(), expected.as_ref(), "{before:?}");
        assert_eq!((entry.to_bytes()[6], &entry.to_bytes()[44..]), (kind, &tail[..]), "{before:?}");
        assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry));
    }
}

#[test]
fn completed_tail_kind_is_that_of_a_completed_entry() {
    let details = Details::builder(owner(ME)).build();
    for (has_details, has_reply) in [(false, false), (false, true), (true, false), (true, true)] {
        let complete = Operation::Complete {
            grant: my_grant(),
            attempt: 1,
            fingerprint: None,
            reply: has_reply.then(|| Bytes::from_static(b"done")),
            details: has_details.then(|| details.clone()),
        };
        let (entry, _) = step(None, &complete, time(NOW));
        let stored = entry.expect("completed").to_bytes();
        assert_eq!(Entry::completed_tail_kind(has_details, has_reply), stored[6]);
    }
}

#[test]
fn invalid_utf8_in_error_is_replaced() {
    let entry = Draft { tail: b"no \xFF funds".to_vec(), ..full() }.entry();
    assert_eq!(entry.error().as_deref(), Some("no \u{FFFD} funds"));
}

/// The protocol's rules for readable bytes, stated independently of `Entry`.
fn is_readable(bytes: &[u8]) -> bool {
    bytes.len() >= 44
        && bytes[0] == 0xC1
        && (1..=4).contains(&(bytes[1] & 7))
        && bytes[1] & 192 == 0
        && bytes[8] == 0
        && bytes[9] < 0x20
}

/// Generates bytes, about half of which are readable.
fn arbitrary_bytes() -> impl Strategy<Value = Vec<u8>> {
    let head = (
        prop_oneof![9 => Just(0xC1), 1 => any::<u8>()],
        prop_oneof![9 => (1..=4_u8, 0..8_u8).prop_map(|(s, f)| s + 8 * f), 1 => any::<u8>()],
        vec(any::<u8>(), 6),
        prop_oneof![9 => Just(0), 1 => any::<u8>()],
        prop_oneof![9 => 0..0x20_u8, 1 => any::<u8>()],
        prop_oneof![9 => vec(any::<u8>(), 34..60), 1 => vec(any::<u8>(), 0..40)],
    );
    head.prop_map(|(version, state, first, token0, token1, rest)| {
        [vec![version, state], first, vec![token0, token1], rest].concat()
    })
}

#[test]
fn readable_bytes_round_trip_and_others_are_rejected() {
    check(2000, &arbitrary_bytes(), |bytes| {
        match Entry::from_bytes(&bytes) {
            Ok(entry) => {
                prop_assert!(is_readable(&bytes));
                prop_assert_eq!(&entry.to_bytes()[..], &bytes[..]);
                prop_assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry));
            }
            Err(_) => prop_assert!(!is_readable(&bytes)),
        }
        Ok(())
    });
}
