//! The differential test detects broken scripts.

use campanile_redis::Verb;

/// A broken script must be found within this many operations. The rarest fault needs some
/// thousands, so the result does not depend on chance.
const MAX_OPERATIONS_TO_DETECT: usize = 1_000_000;

/// Breaks a script by replacing some of its text, and asserts that the test finds a difference.
fn assert_detected(verb: Verb, script: &str, changes: &[(&str, &str)]) {
    let mut broken = script.to_owned();
    for (from, to) in changes {
        assert_eq!(broken.matches(from).count(), 1, "{from}");
        broken = broken.replacen(from, to, 1);
    }
    let servers = super::single_server();
    match super::run(&servers, &[(verb, broken.leak())], MAX_OPERATIONS_TO_DETECT) {
        Ok(runner) => {
            panic!("{changes:?}: no difference in {} operations", runner.fuzzer.operations())
        }
        Err(difference) => println!("{difference}"),
    }
}

#[test]
fn stale_token_completion_mutant_is_detected() {
    let changes = [("\n    and sub(entry, 9, 24) == sub(done, 5, 20)", "")];
    assert_detected(Verb::Complete, campanile_lua::COMPLETE, &changes);
}

#[test]
fn mutants_of_completed_states_are_detected() {
    for change in [
        // Values that are no entries are completed.
        ("version == 0xC1 and #entry", "entry and #entry"),
        (" and #entry >= 44 and", " and"),
        (" and bits < 64 and bits % 8", " and bits % 8"),
        // Entries in another state are.
        (" and bits % 8 == PROCESSING\n", "\n"),
        // The tail is stored under another kind.
        ("kind, tail = sub(done, 29, 29), sub", "tail = sub"),
    ] {
        assert_detected(Verb::Complete, campanile_lua::COMPLETE, &[change]);
    }
}

#[test]
fn uncounted_takeover_mutant_is_detected() {
    let changes = [(
        "else\n    attempt = math.min",
        "elseif state ~= PROCESSING then\n    attempt = math.min",
    )];
    assert_detected(Verb::Acquire, campanile_lua::ACQUIRE, &changes);
}

#[test]
fn client_clock_mutant_is_detected() {
    // The latest time that the client has seen.
    let changes = [("pack('>I8', now + ttl)", "pack('>I8', floor + ttl)")];
    assert_detected(Verb::Acquire, campanile_lua::ACQUIRE, &changes);
}

#[test]
fn mutants_of_acquired_details_are_detected() {
    for change in [
        // The details are not replaced.
        ("if details ~= '' then kind, tail", "if false then kind, tail"),
        // They are added to those of the entry.
        ("first = last + 1", "first = 45"),
        // They are dropped by a grant without details.
        ("if details ~= '' then kind, tail = ", "kind, tail = "),
        // The error or the reply is dropped.
        ("details .. sub(entry, first)", "details"),
        // A reply becomes an error.
        ("kind == REPLY or kind == DETAILS_AND_REPLY\n", "kind == REPLY\n"),
        ("has_reply = kind == REPLY or ", "has_reply = "),
        // What is not the entry's error becomes one.
        ("first = #entry + 1", "first = 45"),
        // A tail of an unknown kind gets details.
        ("if not last then return sub(entry, 7, 7), sub(entry, 45) end", "last = last or 44"),
        // The first grant drops them, or stores them under another kind.
        (".. trailer .. details,", ".. trailer,"),
        ("details == '' and head or head_of_details", "head_of_details"),
        ("details == '' and head or head_of_details", "head"),
        // Details that are too short are read.
        ("return last <= #entry and last or nil", "return last"),
        (" or #entry < 46 then", " or #entry < 45 then"),
        // Details to the end of the tail are not read.
        ("return last <= #entry", "return last < #entry"),
        ("#entry < 46", "#entry < 47"),
    ] {
        assert_detected(Verb::Acquire, campanile_lua::ACQUIRE, &[change]);
    }
}

#[test]
fn mutants_of_failed_details_are_detected() {
    for (verb, script) in
        [(Verb::Fail, campanile_lua::FAIL), (Verb::GiveUp, campanile_lua::GIVE_UP)]
    {
        for change in [
            // The details are dropped.
            ("local last = details_end(entry)\n      kind", "local last\n      kind"),
            ("sub(entry, 45, last) .. text or text", "text"),
            // The error is dropped.
            ("sub(entry, 45, last) .. text or text", "sub(entry, 45, last) or text"),
            // The previous error or reply is kept.
            ("sub(entry, 45, last) .. text or", "sub(entry, 45) .. text or"),
            // The kind does not say what is there.
            ("kind = last and DETAILS_AND_ERROR or ERROR", "kind = ERROR"),
            ("kind = last and DETAILS_AND_ERROR or ERROR", "kind = DETAILS_AND_ERROR"),
            ("kind = last and DETAILS_AND_ERROR or ERROR", "if not last then kind = ERROR end"),
            // Details that are too short are read.
            ("return last <= #entry and last or nil", "return last"),
        ] {
            assert_detected(verb, script, &[change]);
        }
    }
}

#[test]
fn mutants_of_redriven_details_are_detected() {
    for change in [
        // The reply is kept.
        ("kind, tail = DETAILS_AND_ERROR, sub(entry, 45, last)", "kind = DETAILS_AND_ERROR"),
        ("if last and kind == DETAILS_AND_REPLY then", "if false then"),
        // The error, or the details, are dropped.
        ("if last and kind == DETAILS_AND_REPLY then", "if last then"),
        ("elseif not last and kind ~= ERROR then", "elseif kind ~= ERROR then"),
        ("elseif not last and kind ~= ERROR then", "elseif not last then"),
        // A tail that cannot be read is kept.
        ("elseif not last and kind ~= ERROR then", "elseif kind < ERROR or kind == 2 then"),
        ("return last <= #entry and last or nil", "return last"),
    ] {
        assert_detected(Verb::Redrive, campanile_lua::REDRIVE, &[change]);
    }
}
