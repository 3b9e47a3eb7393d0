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
        ("#entry <= first then", "#entry < first then"),
        // Details to the end of the tail are not read.
        ("return last <= #entry", "return last < #entry"),
        ("#entry <= first", "#entry <= first + 1"),
        // The steps are dropped, or moved behind the details, or are read although they cannot be.
        ("if steps == '' then return replaced, tail end", "if true then return replaced, tail end"),
        (
            "return char(STEPS_AND_TAIL), steps .. replaced .. tail",
            "return replaced, tail .. steps",
        ),
        ("last >= #entry then return", "last > #entry then return"),
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
            ("local last = details_end(entry, before, first)\n", "local last\n"),
            ("sub(entry, first, last) .. text or text", "text"),
            // The error is dropped.
            ("sub(entry, first, last) .. text or text", "sub(entry, first, last) or text"),
            // The previous error or reply is kept.
            ("sub(entry, first, last) .. text or", "sub(entry, first) .. text or"),
            // The kind does not say what is there.
            ("kind = last and DETAILS_AND_ERROR or ERROR", "kind = ERROR"),
            ("kind = last and DETAILS_AND_ERROR or ERROR", "kind = DETAILS_AND_ERROR"),
            ("kind = last and DETAILS_AND_ERROR or ERROR", "if not last then kind = ERROR end"),
            // Details that are too short are read.
            ("return last <= #entry and last or nil", "return last"),
            // The steps are dropped, or those that cannot be read are kept.
            ("if steps ~= '' then kind", "if false then kind"),
            ("last >= #entry then return", "last > #entry then return"),
            ("if last == 48 or ", "if "),
        ] {
            assert_detected(verb, script, &[change]);
        }
    }
}

#[test]
fn mutants_of_redriven_details_are_detected() {
    for change in [
        // The reply is kept.
        ("kind, tail = DETAILS_AND_ERROR, sub(entry, first, last)", "kind = DETAILS_AND_ERROR"),
        ("if last and kind == DETAILS_AND_REPLY then", "if false then"),
        // The error, or the details, are dropped.
        ("if last and kind == DETAILS_AND_REPLY then", "if last then"),
        ("elseif not last and kind ~= ERROR then", "elseif kind ~= ERROR then"),
        ("elseif not last and kind ~= ERROR then", "elseif not last then"),
        // A tail that cannot be read is kept.
        ("elseif not last and kind ~= ERROR then", "elseif kind < ERROR or kind == 2 then"),
        ("return last <= #entry and last or nil", "return last"),
        // The steps are dropped.
        ("if steps ~= '' then kind", "if false then kind"),
    ] {
        assert_detected(Verb::Redrive, campanile_lua::REDRIVE, &[change]);
    }
}

#[test]
fn mutants_of_recorded_steps_are_detected() {
    for change in [
        // A stale holder records a step.
        (" and sub(entry, 9, 24) == sub(done, 1, 16)", ""),
        // So does one whose entry is settled.
        ("state == PROCESSING and", "state and"),
        // The last result is kept, or a second one.
        ("is_recorded = has_step(steps, sub(done, 18, 17 + name_len))", "is_recorded = false"),
        // Steps exceed their limits, or those at a limit are refused.
        ("name_len <= MAX_NAME and ", ""),
        ("name_len <= MAX_NAME", "name_len < MAX_NAME"),
        (" and #all <= MAX_STEPS", ""),
        // Earlier steps, or what is behind them, are dropped.
        ("local all = sub(steps, 5) .. ", "local all = "),
        (".. all .. char(kind) .. sub(entry, first)", ".. all .. char(0)"),
        // Steps that cannot be read are searched.
        ("if last > #steps then return nil end", ""),
        ("if result_len_at + 3 > #steps then", "if result_len_at + 2 > #steps then"),
        ("last >= #entry then return", "last > #entry then return"),
    ] {
        assert_detected(Verb::RecordStep, campanile_lua::RECORD_STEP, &[change]);
    }
}
