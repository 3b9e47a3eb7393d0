-- Version 1 of Campanile's schema: the entries, and the protocol's operations on them.
--
-- Run it once, in one transaction, as the role that is to own the schema:
--
--     psql --single-transaction --set ON_ERROR_STOP=1 --file 0001_entries.sql
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

-- An entry after an operation, with the clock that the operation used. state is null if there is no
-- entry.
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

-- Returns the clock, and all of the entries unless all keys had the ordinary outcome.
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
-- a give-up lock. floors are the largest tokens that the client has seen. The ordinary outcome:
-- there was no entry.

CREATE FUNCTION campanile.acquire(
    space text, keys bytea[], owners bigint[], fingerprints bigint[], floors bigint[],
    ttl bigint, max_attempts integer, retention bigint
) RETURNS SETOF campanile.answer
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
            (namespace, key, state, attempt, token, owner, fingerprint, created, at, expires_at)
        SELECT space, a.key, 'P', 1, greatest(instant_micros, a.floor + 1), a.owner, a.fingerprint,
            instant, campanile.after(instant, ttl), campanile.after(instant, retention)
        FROM unnest(keys, owners, fingerprints, floors) AS a (key, owner, fingerprint, floor)
        WHERE greatest(instant_micros, a.floor + 1) < tokens_end
        ORDER BY a.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT array_agg(key) INTO granted FROM inserted;
    RETURN NEXT campanile.to_answer(0, instant, NULL);
    IF cardinality(granted) = cardinality(keys) THEN
        RETURN;
    END IF;

    FOR asked IN
        SELECT a.*
        FROM unnest(keys, owners, fingerprints, floors)
            WITH ORDINALITY AS a (key, owner, fingerprint, floor, place)
        WHERE a.key <> ALL (coalesce(granted, '{}'))
        ORDER BY a.key
    LOOP
        -- Return a settled entry without locking its row, because a row lock is a write.
        instant := clock_timestamp();
        SELECT * INTO e FROM campanile.entry x
        WHERE x.namespace = space AND x.key = asked.key
            AND x.state IN ('C', 'F') AND x.expires_at > instant;
        IF FOUND THEN
            RETURN NEXT campanile.to_answer(asked.place, instant, e);
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
            RETURN NEXT campanile.to_answer(asked.place, instant, NULL);
            CONTINUE;
        END IF;

        before := e;
        next_token := greatest(e.token + 1, instant_micros, asked.floor + 1);
        is_granted := false;
        IF e.expires_at <= instant THEN
            -- The entry has expired and counts as absent.
            IF next_token >= tokens_end THEN
                RETURN NEXT campanile.to_answer(asked.place, instant, NULL);
                CONTINUE;
            END IF;
            e.attempt := 0;
            e.interrupts := 0;
            e.give_ups := 0;
            e.permanent_failure := false;
            e.fingerprint := NULL;
            e.error := NULL;
            e.created := instant;
            is_granted := true;
        ELSIF asked.fingerprint <> e.fingerprint
            AND NOT (e.state = 'R' AND e.attempt = 0 AND e.interrupts = 0)
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
        END IF;
        IF e IS DISTINCT FROM before THEN
            UPDATE campanile.entry x
            SET state = e.state, attempt = e.attempt, interrupts = e.interrupts, give_ups = e.give_ups,
                giving_up = e.giving_up, permanent_failure = e.permanent_failure, released = e.released, token = e.token,
                owner = e.owner, fingerprint = e.fingerprint, created = e.created, at = e.at,
                expires_at = campanile.after(instant, retention), error = e.error, reply = e.reply
            WHERE x.namespace = space AND x.key = asked.key;
        END IF;
        RETURN NEXT campanile.to_answer(asked.place, instant, e);
    END LOOP;
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
-- complete: records the success of each key's grant, with the reply for duplicates (null: none).
--
-- If an entry no longer exists, complete reports it as absent and writes nothing; the caller then
-- calls adopt.

CREATE FUNCTION campanile.complete(
    space text, keys bytea[], tokens bigint[], owners bigint[], replies bytea[], retention bigint
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
        reply = replies[array_position(keys, e.key)]
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
    fingerprints bigint[], replies bytea[], retention bigint
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
            (namespace, key, state, attempt, token, owner, fingerprint, created, at, expires_at, reply)
        SELECT space, a.key, 'C', a.attempt, a.token, a.owner, a.fingerprint,
            instant, instant, campanile.after(instant, retention), a.reply
        FROM unnest(keys, tokens, owners, attempts, fingerprints, replies)
            AS a (key, token, owner, attempt, fingerprint, reply)
        ORDER BY a.key
        ON CONFLICT DO NOTHING
        RETURNING key
    )
    SELECT array_agg(key) INTO adopted FROM inserted;
    RETURN NEXT campanile.to_answer(0, instant, NULL);

    -- The key still has an expired entry, or another owner has been granted it since.
    FOR asked IN
        SELECT a.*
        FROM unnest(keys, tokens, owners, attempts, fingerprints, replies)
            WITH ORDINALITY AS a (key, token, owner, attempt, fingerprint, reply, place)
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
                expires_at = campanile.after(instant, retention), error = NULL, reply = asked.reply
            WHERE x.namespace = space AND x.key = asked.key
            RETURNING x.* INTO e;
        END IF;
        RETURN NEXT campanile.to_answer(asked.place, instant, e);
    END LOOP;
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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA campanile FROM PUBLIC;
