-- Version 1 of Campanile's schema: the entries, the protocol's operations on them, and the outbox.
--
-- Run it once, in one transaction, as the role that is to own the schema:
--
--     psql --single-transaction --set ON_ERROR_STOP=1 --file 0001_schema.sql
--
-- A role that works with entries needs the schema and its functions, and no permission on a table:
--
--     GRANT USAGE ON SCHEMA campanile TO app;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;
--
-- A role that only reads entries needs:
--
--     GRANT USAGE ON SCHEMA campanile TO operator;
--     GRANT SELECT ON campanile.entry TO operator;

CREATE SCHEMA campanile;

CREATE TABLE campanile.migration (
    version integer PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO campanile.migration (version) VALUES (1);

-- The table rejects invalid rows, so that no function has to check for them. Column types do so as
-- far as they can, because each statement that writes a row reads the table's constraints from the
-- catalog and prepares them again, which takes as long as the write itself.
CREATE DOMAIN campanile.token AS bigint CHECK (VALUE >= 0 AND VALUE < 1::bigint << 53);
CREATE DOMAIN campanile.nonzero AS bigint CHECK (VALUE <> 0);
CREATE DOMAIN campanile.instant AS timestamptz CHECK (isfinite(VALUE));
CREATE DOMAIN campanile.attempts AS integer CHECK (VALUE BETWEEN 0 AND 65535);
CREATE DOMAIN campanile.tally AS smallint CHECK (VALUE BETWEEN 0 AND 255);
CREATE DOMAIN campanile.state AS "char" CHECK (VALUE IN ('P', 'R', 'C', 'F'));
CREATE DOMAIN campanile.digest AS bytea CHECK (octet_length(VALUE) = 16);
CREATE DOMAIN campanile.details AS bytea CHECK (octet_length(VALUE) <= 65535);
CREATE DOMAIN campanile.steps AS bytea CHECK (octet_length(VALUE) BETWEEN 1 AND 65536);

-- One row for each key. The columns are ordered by decreasing width, which leaves no padding
-- between them.
CREATE TABLE campanile.entry (
    token             campanile.token    NOT NULL,
    owner             campanile.nonzero,                        -- null: an operator reopened the entry
    fingerprint       campanile.nonzero,                        -- null: not compared
    created           campanile.instant  NOT NULL,
    at                campanile.instant  NOT NULL,              -- the lock's end, the next attempt, or when it was settled
    expires_at        timestamptz        NOT NULL,              -- from then on the entry counts as absent
    attempt           campanile.attempts NOT NULL,
    interrupts        campanile.tally    NOT NULL DEFAULT 0,
    give_ups          campanile.tally    NOT NULL DEFAULT 0,
    state             campanile.state    NOT NULL,
    giving_up         boolean            NOT NULL DEFAULT false,
    permanent_failure boolean            NOT NULL DEFAULT false,
    released          boolean            NOT NULL DEFAULT false,
    key               campanile.digest   NOT NULL,              -- the first 16 bytes of BLAKE3(the user's key)
    namespace         text               COLLATE "C" NOT NULL,
    error             bytea,                                    -- UTF-8, NUL included, which text cannot have
    reply             bytea,
    details           campanile.details,                        -- of a grant; null: dropped at the completion
    steps             campanile.steps,                          -- null: none yet, or dropped at the completion
    PRIMARY KEY (namespace, key),
    CONSTRAINT each_in_its_state CHECK (
        (state = 'P' OR NOT giving_up) AND (state = 'R' OR NOT released) AND (state = 'C' OR reply IS NULL)
    )
);

COMMENT ON TABLE campanile.entry IS 'one entry for each idempotency key';
COMMENT ON COLUMN campanile.entry.state IS 'P processing, R retrying, C completed, F failed';
COMMENT ON COLUMN campanile.entry.key IS 'the first 16 bytes of BLAKE3 over the user''s key';
COMMENT ON COLUMN campanile.entry.token IS 'the fencing token of the last grant';
COMMENT ON COLUMN campanile.entry.owner IS 'the owner of the last grant; null: an operator has reopened the entry';
COMMENT ON COLUMN campanile.entry.at IS 'P: when the lock expires, R: the next attempt, C and F: when the entry was settled';
COMMENT ON COLUMN campanile.entry.expires_at IS 'from then on the entry counts as absent and may be swept';
COMMENT ON COLUMN campanile.entry.attempt IS 'the number of counted attempts, including a running one';
COMMENT ON COLUMN campanile.entry.interrupts IS 'the number of attempts handed back after they had begun, at a shutdown or rebalance; after 8 they count';
COMMENT ON COLUMN campanile.entry.give_ups IS 'the number of locks granted for its dead letter and not handed back';
COMMENT ON COLUMN campanile.entry.giving_up IS 'P: the lock is for the dead letter and not for an attempt';
COMMENT ON COLUMN campanile.entry.permanent_failure IS 'the key gets no further attempt, however few it had';
COMMENT ON COLUMN campanile.entry.released IS 'R: the attempt was handed back and did not fail';
COMMENT ON COLUMN campanile.entry.error IS 'the error of the last failed attempt, in UTF-8';
COMMENT ON COLUMN campanile.entry.details IS 'the key, process, record and trace of a grant, which campanile.describe shows; null: none, or dropped at the completion';
COMMENT ON COLUMN campanile.entry.steps IS 'the names and results of the steps that the handler of a key has run; null: none, or dropped at the completion';

-- An entry after an operation, with the clock that the operation used. state is null if there is no
-- entry. Details and steps are not part of it, because most operations have no use for them.
CREATE TYPE campanile.answer AS (
    place             integer,       -- of the key in the call, from 1; 0: the first row, with the clock
    now               timestamptz,
    token             bigint,
    owner             bigint,
    fingerprint       bigint,
    created           timestamptz,
    at                timestamptz,
    attempt           integer,
    interrupts        smallint,
    give_ups          smallint,
    state             "char",
    giving_up         boolean,
    permanent_failure boolean,
    released          boolean,
    error             bytea,
    reply             bytea
);

CREATE FUNCTION campanile.version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT max(version) FROM campanile.migration';

-- ---------------------------------------------------------------------------------------------------
-- What the operations have in common
--
-- * They take many keys, all distinct, in one namespace; each array has one item for each key.
-- * They read the clock after they have locked the rows, so that no grant is based on the time
--   before a wait.
-- * They lock rows in the order of their keys, after inserting the new rows, also in that order, so
--   that no two calls ever deadlock.
-- * They compare and set on token and owner.
-- * The first row of a result has place 0 and the clock. Every key without another row had the
--   ordinary outcome. The other rows have the entries as they are after the operation.
-- * Their plans must not depend on the table's contents at planning time, because the table is
--   empty then.

CREATE FUNCTION campanile.micros(instant timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS 'SELECT (extract(epoch FROM instant) * 1000000)::bigint';

CREATE FUNCTION campanile.after(instant timestamptz, micros bigint) RETURNS timestamptz
LANGUAGE sql STABLE
AS $$ SELECT instant + micros * interval '1 microsecond' $$;

-- Returns an entry and its place; null is no entry.
CREATE FUNCTION campanile.to_answer(place bigint, now timestamptz, e campanile.entry) RETURNS campanile.answer
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ROW (
        place::integer, now, e.token, e.owner, e.fingerprint, e.created, e.at, e.attempt, e.interrupts,
        e.give_ups, e.state, e.giving_up, e.permanent_failure, e.released, e.error, e.reply
    )::campanile.answer;
END
$$;

-- Makes the answer of a call as durable as the commits that it repeats.
--
-- A commit that waited for a synchronous standby is visible as soon as its wait is cancelled, by an
-- operator or by a shutdown, although no standby has it. A call that only reads such an entry would
-- acknowledge what a failover loses. A call that has written anything waits for the standby until
-- everything before it is there. So if this call has written nothing, lock a settled row of its
-- keys: that is the smallest record in the log, changes nothing, and holds up only operators. Rows
-- that others have locked are skipped, so that no two calls ever deadlock; then a row serves that
-- nobody changes.
--
-- Without synchronous standbys there is nothing to wait for: visible commits are on the disk.
CREATE FUNCTION campanile.persist(space text, keys bytea[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('synchronous_standby_names') = '' OR current_setting('synchronous_commit') IN ('off', 'local')
        OR pg_current_xact_id_if_assigned() IS NOT NULL
    THEN
        RETURN;
    END IF;
    PERFORM FROM campanile.entry e
    WHERE e.namespace = space AND e.key = ANY (keys) AND e.state IN ('C', 'F')
    LIMIT 1
    FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM campanile.migration WHERE version = 1 FOR KEY SHARE;
    END IF;
END
$$;

-- Returns the clock, and all of the entries unless all keys had the ordinary outcome. Only acquire
-- returns entries in another way.
CREATE FUNCTION campanile.to_answers(space text, keys bytea[], instant timestamptz, is_usual boolean)
RETURNS SETOF campanile.answer
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN NEXT campanile.to_answer(0, instant, NULL);
    IF is_usual THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT answer.*
        FROM unnest(keys) WITH ORDINALITY AS asked (key, place)
        LEFT JOIN LATERAL (
            SELECT e FROM campanile.entry e
            WHERE e.namespace = space AND e.key = asked.key AND e.expires_at > instant
            LIMIT 1
        ) found ON true
        CROSS JOIN LATERAL campanile.to_answer(asked.place, instant, found.e) answer;
    PERFORM campanile.persist(space, keys);
END
$$;

-- Locks the rows in PROCESSING that belong to these grants, and returns their ctids. If tokens is
-- null, only the owner is compared.
CREATE FUNCTION campanile.hold(space text, keys bytea[], tokens bigint[], owners bigint[]) RETURNS tid[]
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN (
        SELECT array_agg(held.place)
        FROM (
            SELECT * FROM unnest(keys, tokens, owners) AS a (key, token, owner) ORDER BY a.key
        ) asked
        CROSS JOIN LATERAL (
            SELECT e.ctid AS place FROM campanile.entry e
            WHERE e.namespace = space AND e.key = asked.key AND e.owner = asked.owner
                AND (tokens IS NULL OR e.token = asked.token)
                AND e.state = 'P' AND e.expires_at > clock_timestamp()
            FOR UPDATE
        ) held
    );
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- acquire: acquires the lock of each key and counts an attempt.
--
-- ttl and retention are in microseconds. Once max_attempts are counted (0: unlimited), the grant is
-- a give-up lock. floors are the largest tokens that the client has seen. all_details are those of
-- each key's grant; null keeps the details of an earlier grant. The ordinary outcome: there was no
-- entry.
--
-- Also returns the details of the entries, and the steps to their owner, or if they make a mismatch.

CREATE FUNCTION campanile.acquire(
    space text, keys bytea[], owners bigint[], fingerprints bigint[], floors bigint[],
    all_details bytea[], ttl bigint, max_attempts integer, retention bigint
) RETURNS TABLE (answer campanile.answer, details bytea, steps bytea)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    tokens_end CONSTANT bigint := 1::bigint << 53;
    instant timestamptz := clock_timestamp();
    instant_micros bigint := campanile.micros(instant);
    granted bytea[];
    asked record;
    before campanile.entry;
    e campanile.entry;
    next_token bigint;
    is_granted boolean;
BEGIN
    WITH inserted AS (
        INSERT INTO campanile.entry
            (namespace, key, state, attempt, token, owner, fingerprint, created, at, expires_at, details)
        SELECT space, a.key, 'P', 1, greatest(instant_micros, a.floor + 1), a.owner, a.fingerprint,
            instant, campanile.after(instant, ttl), campanile.after(instant, retention), a.details
        FROM unnest(keys, owners, fingerprints, floors, all_details)
            AS a (key, owner, fingerprint, floor, details)
        WHERE greatest(instant_micros, a.floor + 1) < tokens_end
        ORDER BY a.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT array_agg(key) INTO granted FROM inserted;
    answer := campanile.to_answer(0, instant, NULL);
    RETURN NEXT;
    IF cardinality(granted) = cardinality(keys) THEN
        RETURN;
    END IF;

    FOR asked IN
        SELECT a.*
        FROM unnest(keys, owners, fingerprints, floors, all_details)
            WITH ORDINALITY AS a (key, owner, fingerprint, floor, details, place)
        WHERE a.key <> ALL (coalesce(granted, '{}'))
        ORDER BY a.key
    LOOP
        -- Return a settled entry without locking its row, because a row lock is a write. If the
        -- call writes nothing else, persist locks one row at its end.
        instant := clock_timestamp();
        SELECT * INTO e FROM campanile.entry x
        WHERE x.namespace = space AND x.key = asked.key
            AND x.state IN ('C', 'F') AND x.expires_at > instant;
        IF FOUND THEN
            answer := campanile.to_answer(asked.place, instant, e);
            details := e.details;
            steps := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT * INTO e FROM campanile.entry x
        WHERE x.namespace = space AND x.key = asked.key
        FOR UPDATE;
        instant := clock_timestamp();
        instant_micros := campanile.micros(instant);
        IF NOT FOUND THEN
            IF greatest(instant_micros, asked.floor + 1) < tokens_end THEN
                RAISE EXCEPTION 'an entry was swept away while it was acquired'
                    USING ERRCODE = 'serialization_failure';
            END IF;
            answer := campanile.to_answer(asked.place, instant, NULL);
            details := NULL;
            steps := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;

        before := e;
        next_token := greatest(e.token + 1, instant_micros, asked.floor + 1);
        is_granted := false;
        IF e.expires_at <= instant THEN
            -- The entry has expired and counts as absent.
            IF next_token >= tokens_end THEN
                answer := campanile.to_answer(asked.place, instant, NULL);
                details := NULL;
                steps := NULL;
                RETURN NEXT;
                CONTINUE;
            END IF;
            e.attempt := 0;
            e.interrupts := 0;
            e.give_ups := 0;
            e.permanent_failure := false;
            e.fingerprint := NULL;
            e.error := NULL;
            e.details := NULL;
            e.steps := NULL;
            e.created := instant;
            is_granted := true;
        ELSIF asked.fingerprint <> e.fingerprint
            AND NOT (e.state = 'R' AND e.attempt = 0 AND e.interrupts = 0 AND e.steps IS NULL)
        THEN
            NULL; -- a mismatch; what was never tried may still change its payload
        ELSIF e.state IN ('C', 'F') THEN
            NULL;
        ELSIF e.owner = asked.owner THEN
            IF e.state = 'P' THEN
                e.at := greatest(e.at, campanile.after(instant, ttl));
            END IF;
        ELSE
            -- The time can be further away than the protocol's maximum only if the clock was set
            -- back.
            e.at := least(e.at, instant + CASE e.state WHEN 'P' THEN interval '1 hour' ELSE interval '24 hours' END);
            is_granted := e.at <= instant AND next_token < tokens_end;
        END IF;

        IF is_granted THEN
            e.giving_up := e.permanent_failure OR (max_attempts > 0 AND e.attempt >= max_attempts);
            IF e.giving_up THEN
                e.give_ups := least(e.give_ups + 1, 255);
            ELSE
                e.attempt := least(e.attempt + 1, 65535);
            END IF;
            e.state := 'P';
            e.released := false;
            e.reply := NULL;
            e.at := campanile.after(instant, ttl);
            e.token := next_token;
            e.owner := asked.owner;
            e.fingerprint := coalesce(asked.fingerprint, e.fingerprint);
            e.details := coalesce(asked.details, e.details);
        END IF;
        IF e IS DISTINCT FROM before THEN
            UPDATE campanile.entry x
            SET state = e.state, attempt = e.attempt, interrupts = e.interrupts, give_ups = e.give_ups,
                giving_up = e.giving_up, permanent_failure = e.permanent_failure, released = e.released, token = e.token,
                owner = e.owner, fingerprint = e.fingerprint, created = e.created, at = e.at,
                expires_at = campanile.after(instant, retention), error = e.error, reply = e.reply,
                details = e.details, steps = e.steps
            WHERE x.namespace = space AND x.key = asked.key;
        END IF;
        answer := campanile.to_answer(asked.place, instant, e);
        details := e.details;
        steps := CASE WHEN (e.state = 'P' AND e.owner = asked.owner)
            OR (e.state = 'R' AND e.attempt = 0 AND e.interrupts = 0) THEN e.steps END;
        RETURN NEXT;
    END LOOP;
    PERFORM campanile.persist(space, keys);
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- renew: extends the lock of each key. A lock is never shortened.

CREATE FUNCTION campanile.renew(
    space text, keys bytea[], tokens bigint[], owners bigint[], ttl bigint, retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
BEGIN
    UPDATE campanile.entry e
    SET at = campanile.after(instant, ttl), expires_at = campanile.after(instant, retention)
    WHERE e.ctid = ANY (held) AND e.at < campanile.after(instant, ttl);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(held), 0) = cardinality(keys));
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- complete: records the success of each key's grant, with the reply for duplicates (null: none). The
-- entry keeps exactly these details, and no steps; null drops the details of the grant.
--
-- If an entry no longer exists, complete reports it as absent and writes nothing; the caller then
-- calls adopt.

CREATE FUNCTION campanile.complete(
    space text, keys bytea[], tokens bigint[], owners bigint[], replies bytea[], all_details bytea[],
    retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
BEGIN
    UPDATE campanile.entry e
    SET state = 'C', at = instant, expires_at = campanile.after(instant, retention),
        giving_up = false, permanent_failure = false, error = NULL,
        reply = replies[array_position(keys, e.key)], details = all_details[array_position(keys, e.key)], steps = NULL
    WHERE e.ctid = ANY (held);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(held), 0) = cardinality(keys));
END
$$;

-- adopt: records the success of a grant whose entry was lost while the handler ran, by a failover
-- or because its retention ended. As far as this database knows, no other owner has been granted
-- the key since, so the result is saved.
--
-- Separate from complete, because a call that holds row locks must not wait for rows that others
-- insert.

CREATE FUNCTION campanile.adopt(
    space text, keys bytea[], tokens bigint[], owners bigint[], attempts integer[],
    fingerprints bigint[], replies bytea[], all_details bytea[], retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    instant timestamptz := clock_timestamp();
    adopted bytea[];
    asked record;
    e campanile.entry;
BEGIN
    WITH inserted AS (
        INSERT INTO campanile.entry
            (namespace, key, state, attempt, token, owner, fingerprint, created, at, expires_at, reply, details)
        SELECT space, a.key, 'C', a.attempt, a.token, a.owner, a.fingerprint,
            instant, instant, campanile.after(instant, retention), a.reply, a.details
        FROM unnest(keys, tokens, owners, attempts, fingerprints, replies, all_details)
            AS a (key, token, owner, attempt, fingerprint, reply, details)
        ORDER BY a.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT array_agg(key) INTO adopted FROM inserted;
    RETURN NEXT campanile.to_answer(0, instant, NULL);

    -- The key still has an expired entry, or another owner has been granted it since.
    FOR asked IN
        SELECT a.*
        FROM unnest(keys, tokens, owners, attempts, fingerprints, replies, all_details)
            WITH ORDINALITY AS a (key, token, owner, attempt, fingerprint, reply, details, place)
        WHERE a.key <> ALL (coalesce(adopted, '{}'))
        ORDER BY a.key
    LOOP
        SELECT * INTO e FROM campanile.entry x
        WHERE x.namespace = space AND x.key = asked.key
        FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'an entry was swept away while it was adopted'
                USING ERRCODE = 'serialization_failure';
        END IF;
        instant := clock_timestamp();
        IF e.expires_at <= instant THEN
            UPDATE campanile.entry x
            SET state = 'C', attempt = asked.attempt, interrupts = 0, give_ups = 0, giving_up = false,
                permanent_failure = false, released = false, token = asked.token, owner = asked.owner,
                fingerprint = asked.fingerprint, created = instant, at = instant,
                expires_at = campanile.after(instant, retention), error = NULL, reply = asked.reply,
                details = asked.details, steps = NULL
            WHERE x.namespace = space AND x.key = asked.key
            RETURNING x.* INTO e;
        END IF;
        RETURN NEXT campanile.to_answer(asked.place, instant, e);
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- conclude: completes the key's grant as complete does, as the last statement of the transaction that
-- the inbox began and its handler wrote in. Returns the time of completion.
--
-- Unlike complete, it raises an error if there is nothing to complete, so that the COMMIT sent
-- after it rolls back: of all transactions of a grant, only the one that takes the entry out of
-- PROCESSING is ever committed.
--
-- CI001: the handler has ended the transaction itself. CI002: the grant no longer holds the entry,
-- or has completed it before.

CREATE FUNCTION campanile.conclude(
    space text, asked bytea, its_token bigint, its_owner bigint, its_reply bytea, its_details bytea,
    retention bigint
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    instant timestamptz;
BEGIN
    -- The local setting ends with the transaction.
    IF current_setting('campanile.inbox', true) IS DISTINCT FROM 'open' THEN
        RAISE EXCEPTION 'the handler has ended the transaction of its inbox' USING ERRCODE = 'CI001';
    END IF;
    UPDATE campanile.entry e
    SET state = 'C', at = clock_timestamp(),
        expires_at = campanile.after(clock_timestamp(), retention),
        giving_up = false, permanent_failure = false, error = NULL, reply = its_reply,
        details = its_details, steps = NULL
    WHERE e.namespace = space AND e.key = asked AND e.token = its_token AND e.owner = its_owner
        AND e.state = 'P' AND e.expires_at > clock_timestamp()
    RETURNING e.at INTO instant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the grant no longer holds the entry' USING ERRCODE = 'CI002';
    END IF;
    RETURN instant;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- fail: records the failed attempt of each key's grant. delays are in microseconds. lasts says
-- whether the entry has failed permanently, so that its next grant is a give-up lock. A null error keeps the
-- previous one.

CREATE FUNCTION campanile.fail(
    space text, keys bytea[], tokens bigint[], owners bigint[], delays bigint[], lasts boolean[],
    errors bytea[], retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
BEGIN
    UPDATE campanile.entry e
    SET state = 'R', at = campanile.after(instant, delays[array_position(keys, e.key)]),
        expires_at = campanile.after(instant, retention),
        give_ups = greatest(e.give_ups - e.giving_up::integer, 0), giving_up = false,
        permanent_failure = e.permanent_failure OR lasts[array_position(keys, e.key)],
        error = coalesce(errors[array_position(keys, e.key)], e.error)
    WHERE e.ctid = ANY (held);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(held), 0) = cardinality(keys));
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- release: releases the lock of each key and hands its attempt back. If the handler has begun
-- (ran), the attempt is handed back at most eight times. Releasing a give-up lock hands back the
-- give-up instead.

CREATE FUNCTION campanile.release(
    space text, keys bytea[], tokens bigint[], owners bigint[], ran boolean, retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
BEGIN
    UPDATE campanile.entry e
    SET state = 'R', at = instant, expires_at = campanile.after(instant, retention),
        attempt = greatest(e.attempt - (NOT e.giving_up AND (NOT ran OR e.interrupts < 8))::integer, 0),
        interrupts = e.interrupts + (NOT e.giving_up AND ran AND e.interrupts < 8)::integer,
        give_ups = greatest(e.give_ups - e.giving_up::integer, 0), giving_up = false, released = true
    WHERE e.ctid = ANY (held);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(held), 0) = cardinality(keys));
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- cancel: undoes an acquire of each key whose answer is unknown, by its owner alone. The client
-- never received a token, so the handler did not run.

CREATE FUNCTION campanile.cancel(space text, keys bytea[], owners bigint[], retention bigint)
RETURNS SETOF campanile.answer
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM campanile.release(space, keys, NULL, owners, false, retention)';

-- ---------------------------------------------------------------------------------------------------
-- give_up: makes each key FAILED for good. A null reason keeps the last error.

CREATE FUNCTION campanile.give_up(
    space text, keys bytea[], tokens bigint[], owners bigint[], reasons bytea[], retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
BEGIN
    UPDATE campanile.entry e
    SET state = 'F', at = instant, expires_at = campanile.after(instant, retention), giving_up = false,
        error = coalesce(reasons[array_position(keys, e.key)], e.error)
    WHERE e.ctid = ANY (held);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(held), 0) = cardinality(keys));
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- record_step: records the result of a step of each key's handler. The first result of a name is kept.
-- Names are UTF-8. Nothing is recorded if a name has more than 64 bytes, or if the steps of a key would
-- exceed 64 KiB, or cannot be read.
--
-- The steps of an entry are a sequence: the length of the name in one byte, the name, the length of the
-- result in four bytes, the result. Only this function looks into them.
--
-- Also returns the steps of the entries.

-- Checks whether these steps have one of this name. Null: they have not, and cannot all be read.
CREATE FUNCTION campanile.has_step(steps bytea, name bytea) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size CONSTANT integer := coalesce(octet_length(steps), 0);
    start integer := 0; -- of the step
    name_end integer;
    step_end bigint;
BEGIN
    WHILE start < size LOOP
        name_end := start + 1 + get_byte(steps, start);
        IF name_end + 4 > size THEN
            RETURN NULL;
        END IF;
        step_end := name_end + 4 + ('x' || encode(substring(steps FROM name_end + 1 FOR 4), 'hex'))::bit(32)::bigint;
        IF step_end > size THEN
            RETURN NULL;
        ELSIF substring(steps FROM start + 2 FOR name_end - start - 1) = name THEN
            RETURN true;
        END IF;
        start := step_end;
    END LOOP;
    RETURN false;
END
$$;

CREATE FUNCTION campanile.record_step(
    space text, keys bytea[], tokens bigint[], owners bigint[], names bytea[], results bytea[],
    retention bigint
) RETURNS TABLE (answer campanile.answer, steps bytea)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held tid[] := campanile.hold(space, keys, tokens, owners);
    instant timestamptz := clock_timestamp();
    recorded integer := 0;
    found_step boolean;
    next_steps bytea;
    asked record;
BEGIN
    FOR asked IN
        SELECT e.ctid AS place, e.steps, names[array_position(keys, e.key)] AS name,
            results[array_position(keys, e.key)] AS result
        FROM campanile.entry e
        WHERE e.ctid = ANY (held)
    LOOP
        found_step := campanile.has_step(asked.steps, asked.name);
        IF NOT found_step AND octet_length(asked.name) <= 64 THEN
            next_steps := coalesce(asked.steps, '') || substring(int4send(octet_length(asked.name)) FROM 4)
                || asked.name || int4send(octet_length(asked.result)) || asked.result;
            IF octet_length(next_steps) <= 65536 THEN
                UPDATE campanile.entry e
                SET steps = next_steps, expires_at = campanile.after(instant, retention)
                WHERE e.ctid = asked.place;
                found_step := true;
            END IF;
        END IF;
        recorded := recorded + coalesce(found_step, false)::integer;
    END LOOP;
    RETURN QUERY
        SELECT a, (SELECT e.steps FROM campanile.entry e WHERE e.namespace = space AND e.key = keys[a.place])::bytea
        FROM campanile.to_answers(space, keys, instant, recorded = cardinality(keys)) a;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- redrive: reopens each FAILED key, for an operator that names its token. With force, also reopens
-- keys that are COMPLETED, or RETRYING and not reopened yet. A lock is never taken away. The token
-- stays, because the next grant's token must exceed it.

CREATE FUNCTION campanile.redrive(
    space text, keys bytea[], tokens bigint[], force boolean, retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    reopened tid[];
    instant timestamptz;
BEGIN
    SELECT array_agg(closed.place) INTO reopened
    FROM (SELECT * FROM unnest(keys, tokens) AS a (key, token) ORDER BY a.key) asked
    CROSS JOIN LATERAL (
        SELECT e.ctid AS place FROM campanile.entry e
        WHERE e.namespace = space AND e.key = asked.key AND e.token = asked.token
            AND e.expires_at > clock_timestamp()
            AND (e.state = 'F' OR (force AND (e.state = 'C'
                OR (e.state = 'R' AND NOT (e.attempt = 0 AND e.owner IS NULL)))))
        FOR UPDATE
    ) closed;
    instant := clock_timestamp();
    UPDATE campanile.entry e
    SET state = 'R', at = instant, expires_at = campanile.after(instant, retention), permanent_failure = false,
        released = false, attempt = 0, interrupts = 0, give_ups = 0, owner = NULL, fingerprint = NULL,
        reply = NULL
    WHERE e.ctid = ANY (reopened);
    RETURN QUERY SELECT * FROM campanile.to_answers(
        space, keys, instant, coalesce(cardinality(reopened), 0) = cardinality(keys));
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- describe: decodes the details of an entry. Absent and unreadable parts are null. A key or a name
-- that is not UTF-8 is shown in hexadecimal, as is a key that was cut within a character.
--
-- If owner is not that of the entry, the details are those of an earlier grant.

CREATE FUNCTION campanile.as_text(bytes bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN data_exception THEN
    RETURN '\x' || encode(bytes, 'hex');
END
$$;

CREATE FUNCTION campanile.describe(
    details bytea, OUT owner bigint, OUT key text, OUT process text, OUT record text, OUT trace text
)
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size CONSTANT integer := octet_length(details);
    start integer := 0; -- of the field: its kind, the length of its value, its value
    len integer;
    value bytea;
    hex text;
    topic text;
    place text;
BEGIN
    WHILE start + 2 <= size LOOP
        len := get_byte(details, start + 1);
        EXIT WHEN start + 2 + len > size;
        value := substring(details FROM start + 3 FOR len);
        hex := encode(value, 'hex');
        CASE get_byte(details, start)
            WHEN 1 THEN
                owner := CASE WHEN len = 8 THEN ('x' || hex)::bit(64)::bigint END;
            WHEN 2 THEN
                key := campanile.as_text(value);
            WHEN 3 THEN
                process := campanile.as_text(value);
            WHEN 4 THEN
                topic := campanile.as_text(value);
            WHEN 5 THEN
                place := CASE WHEN len = 12 THEN format('%s@%s',
                    ('x' || left(hex, 8))::bit(32)::integer, ('x' || right(hex, 16))::bit(64)::bigint) END;
            WHEN 6 THEN
                -- As in the header traceparent.
                trace := CASE WHEN len = 25 THEN concat_ws('-',
                    '00', left(hex, 32), substring(hex FROM 33 FOR 16), right(hex, 2)) END;
            ELSE
                NULL; -- a kind of a later version
        END CASE;
        start := start + 2 + len;
    END LOOP;
    record := topic || '/' || place;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- scan: returns the entries of a namespace whose keys follow beyond, in the order of their keys, if
-- their state is one of these (none: all) and if they were created at least min_age microseconds
-- ago.
--
-- Examines at most `most` rows, whatever it selects, and none after the replies, details and steps of the
-- selected entries have reached `size` bytes. The last row has no entry; its next is where to
-- continue, or null at the end. The rows must come from the index in the order of their keys:
-- without statistics, a plan that reads and sorts the whole namespace looks cheaper.
--
-- scan runs with the permissions of its caller, who must be allowed to read the table.

CREATE FUNCTION campanile.scan(
    space text, beyond bytea, states "char"[], min_age bigint, most integer, size bigint
) RETURNS TABLE (now timestamptz, next bytea, e campanile.entry)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    latest timestamptz;
    last bytea;
    examined integer := 0;
    room bigint := size;
BEGIN
    now := clock_timestamp();
    latest := campanile.after(now, -min_age);
    FOR e IN
        SELECT * FROM campanile.entry x
        WHERE x.namespace = space AND x.key > beyond
        ORDER BY x.key
        LIMIT most
    LOOP
        examined := examined + 1;
        last := e.key;
        -- The protocol knows the time of creation in whole seconds.
        CONTINUE WHEN e.expires_at <= now OR date_trunc('second', e.created) > latest
            OR (cardinality(states) > 0 AND e.state <> ALL (states));
        RETURN NEXT;
        room := room - coalesce(octet_length(e.reply), 0) - coalesce(octet_length(e.details), 0)
            - coalesce(octet_length(e.steps), 0);
        EXIT WHEN room <= 0;
    END LOOP;
    IF examined = most OR room <= 0 THEN
        next := last;
    END IF;
    e := NULL;
    RETURN NEXT;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- sweep: deletes the expired entries in some pages of the table, starting at page first.
--
-- There is no index of expiry times, because every operation would have to update it; sweep scans
-- the table, some pages at a time. It skips rows that others have locked, so no call waits. An
-- entry counts as absent as soon as it expires, long before it is swept. sweep leaves it for
-- another minute, for calls that have found it absent and have not written yet.
--
-- deleted is null if another session is sweeping. next is the page to continue with, or null at the
-- end of the table.

CREATE FUNCTION campanile.sweep(first bigint, pages integer, OUT deleted bigint, OUT next bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    table_id CONSTANT oid := 'campanile.entry'::regclass;
    page_size CONSTANT bigint := current_setting('block_size')::bigint;
    over CONSTANT timestamptz := clock_timestamp() - interval '1 minute';
BEGIN
    IF NOT pg_try_advisory_xact_lock(table_id::bigint) THEN
        RETURN;
    END IF;
    DELETE FROM campanile.entry
    WHERE ctid = ANY (ARRAY(
        SELECT e.ctid FROM campanile.entry e
        WHERE e.ctid >= format('(%s,0)', first)::tid
            AND e.ctid < format('(%s,0)', first + pages)::tid
            AND e.expires_at < over
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    next := first + pages;
    IF next * page_size >= pg_relation_size(table_id) THEN
        next := NULL;
    END IF;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- The outbox: messages for Kafka, written in a handler's transaction and published after its commit.

-- Rejects invalid topic names when a message is written, because a broker would reject them later.
CREATE DOMAIN campanile.topic AS text COLLATE "C"
    CHECK (VALUE ~ '^[A-Za-z0-9._-]{1,249}$' AND VALUE NOT IN ('.', '..'));

-- One row for each message that is not known to be published. The table is short and changes all
-- the time, so it is vacuumed often: a read must not scan many deleted rows before it finds the
-- next message.
CREATE TABLE campanile.outbox (
    id            bigint          GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    written       timestamptz     NOT NULL DEFAULT clock_timestamp(),
    millis        bigint          NOT NULL,                -- the message's time, since 1970
    topic         campanile.topic NOT NULL,
    key           bytea,
    payload       bytea,
    header_names  text[]          NOT NULL,
    header_values bytea[]         NOT NULL,
    CONSTRAINT each_header_has_its_name CHECK (
        array_position(header_names, NULL) IS NULL
        AND cardinality(header_names) = cardinality(header_values)
        AND coalesce(array_ndims(header_names), 1) = 1 AND coalesce(array_ndims(header_values), 1) = 1
    )
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

COMMENT ON TABLE campanile.outbox IS 'messages that Campanile has not published yet';

-- ---------------------------------------------------------------------------------------------------
-- publish: writes a message, as part of the calling transaction. A message without a time gets the
-- time of the call.
--
-- Messages of one key get their ids in the order in which their transactions are committed: a
-- transaction that writes one waits until other transactions that have written one end. Two keys
-- whose hashes collide share a lock and then wait needlessly.

CREATE FUNCTION campanile.publish(
    its_topic text, its_key bytea, its_payload bytea, its_millis bigint, names text[], contents bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF its_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(
            'campanile.outbox'::regclass::oid::integer,
            hashtext(its_topic || ' ' || encode(its_key, 'hex')));
    END IF;
    INSERT INTO campanile.outbox (topic, key, payload, millis, header_names, header_values)
    VALUES (
        its_topic, its_key, its_payload,
        coalesce(its_millis, campanile.micros(clock_timestamp()) / 1000), names, contents
    );
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- relay: deletes the published messages, and returns the messages in due and the next others: at
-- most `most` of them, and none after their keys, payloads and headers have reached `size` bytes.
--
-- Skips the held messages with all messages of the same topic and key, and all messages of full
-- topics. Messages are returned once a failover would keep them.

CREATE FUNCTION campanile.relay(
    published bigint[], held bigint[], due bigint[], full_topics text[], most integer, size bigint
) RETURNS SETOF campanile.outbox
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    o campanile.outbox;
    room bigint := size;
BEGIN
    DELETE FROM campanile.outbox WHERE id = ANY (published);
    RETURN QUERY SELECT * FROM campanile.outbox next WHERE next.id = ANY (due) ORDER BY next.id;
    FOR o IN
        SELECT * FROM campanile.outbox next
        WHERE next.topic <> ALL (full_topics)
            AND CASE
                WHEN next.key IS NULL THEN next.id <> ALL (held)
                ELSE (next.topic, next.key) NOT IN (
                    SELECT h.topic, h.key FROM campanile.outbox h
                    WHERE h.id = ANY (held) AND h.key IS NOT NULL)
            END
        ORDER BY next.id
        LIMIT most
    LOOP
        EXIT WHEN room <= 0;
        RETURN NEXT o;
        room := room - coalesce(octet_length(o.key), 0) - coalesce(octet_length(o.payload), 0)
            - pg_column_size(o.header_values);
    END LOOP;
    IF o.id IS NOT NULL OR cardinality(due) > 0 THEN
        PERFORM campanile.persist('', '{}');
    END IF;
END
$$;

-- ---------------------------------------------------------------------------------------------------
-- backlog: counts the messages that are not known to be published, at most `most` of them, and returns
-- the age of the oldest in seconds.

CREATE FUNCTION campanile.backlog(most integer, OUT messages bigint, OUT oldest_age double precision)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(next.written)), 0)
    FROM (SELECT o.written FROM campanile.outbox o ORDER BY o.id LIMIT most) next
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA campanile FROM PUBLIC;

-- A role that only reads entries needs no permission on a function. Nobody learns from as_text,
-- describe and scan what they may not read.
GRANT EXECUTE ON FUNCTION
    campanile.version, campanile.after, campanile.as_text, campanile.describe, campanile.scan
TO PUBLIC;
