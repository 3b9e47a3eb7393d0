-- Version 4 of Campanile's schema: the details of entries, a scan of them, the steps of handlers, durable answers.
-- An entry says for which key, process, record and trace it was last granted, and has the results of the
-- steps that its handler has run, which a later attempt does not run again.
--
-- Run it once, in one transaction, as the owner of the schema, and repeat the grant for the new
-- functions:
--
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;
--
-- It needs the table campanile.entry for a moment, and fails if another transaction uses it for
-- more than two seconds, such as a dump. Run it again later.
--
-- Processes of version 3 that are connected continue: acquire, complete, adopt and conclude keep
-- their former parameters in functions of their own, which pass no details. The next version may
-- drop those four.

INSERT INTO campanile.migration (version) VALUES (4);

-- A pending ALTER TABLE holds up all calls that come after it.
SET LOCAL lock_timeout = '2s';

-- A constraint that is added with the column, or that had to be valid before, would read or rewrite
-- the whole table. No row needs a check, because no row has details or steps yet.
CREATE DOMAIN campanile.details AS bytea;
ALTER TABLE campanile.entry ADD COLUMN details campanile.details;
ALTER DOMAIN campanile.details ADD CHECK (octet_length(VALUE) <= 65535) NOT VALID;
CREATE DOMAIN campanile.steps AS bytea;
ALTER TABLE campanile.entry ADD COLUMN steps campanile.steps;
ALTER DOMAIN campanile.steps ADD CHECK (octet_length(VALUE) BETWEEN 1 AND 65536) NOT VALID;

COMMENT ON COLUMN campanile.entry.details IS 'the key, process, record and trace of a grant, which campanile.describe shows; null: none, or dropped at the completion';
COMMENT ON COLUMN campanile.entry.steps IS 'the names and results of the steps that the handler of a key has run; null: none, or dropped at the completion';

-- ---------------------------------------------------------------------------------------------------
-- persist: makes the answer of a call as durable as the commits that it repeats.
--
-- A commit that waited for a synchronous standby is visible as soon as its wait is cancelled, by an
-- operator or by a shutdown, although no standby has it. A call that only reads such an entry would
-- acknowledge what a failover loses. A call that has written anything waits for the standby until
-- everything before it is there. So if this call has written nothing, lock a settled row of its
-- keys: that is the smallest record in the log, changes nothing, and holds up only operators. Rows that others have
-- locked are skipped, so that no two calls ever deadlock; then a row serves that nobody changes.
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

-- As before, and durable: no function but acquire returns entries in another way.
CREATE OR REPLACE FUNCTION campanile.to_answers(space text, keys bytea[], instant timestamptz, is_usual boolean)
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

-- relay: as before. Messages are published once a failover would keep them.

CREATE OR REPLACE FUNCTION campanile.relay(
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
-- acquire: as before, with the details of each key's grant. Null keeps those of an earlier grant.
--
-- Returns the details of the entries, too, and to their owner the steps. They are not part of campanile.answer, because the other
-- functions have no use for them, and because the plans of sessions that are connected during the
-- migration depend on the columns of that type.

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
        -- Return a settled entry without locking its row, because a row lock is a write. If the call writes
        -- nothing else, persist locks one row at its end.
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
        steps := CASE WHEN e.state = 'P' AND e.owner = asked.owner THEN e.steps END;
        RETURN NEXT;
    END LOOP;
    PERFORM campanile.persist(space, keys);
END
$$;

CREATE OR REPLACE FUNCTION campanile.acquire(
    space text, keys bytea[], owners bigint[], fingerprints bigint[], floors bigint[],
    ttl bigint, max_attempts integer, retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (a.answer).*
    FROM campanile.acquire(space, keys, owners, fingerprints, floors, NULL, ttl, max_attempts, retention) a
$$;

-- ---------------------------------------------------------------------------------------------------
-- complete, adopt: as before. The entries keep exactly these details; null drops those of the grant. They
-- keep no steps.

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

CREATE OR REPLACE FUNCTION campanile.complete(
    space text, keys bytea[], tokens bigint[], owners bigint[], replies bytea[], retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM campanile.complete(space, keys, tokens, owners, replies, NULL, retention)';

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

CREATE OR REPLACE FUNCTION campanile.adopt(
    space text, keys bytea[], tokens bigint[], owners bigint[], attempts integer[],
    fingerprints bigint[], replies bytea[], retention bigint
) RETURNS SETOF campanile.answer
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM campanile.adopt(
        space, keys, tokens, owners, attempts, fingerprints, replies, NULL, retention)
$$;

-- ---------------------------------------------------------------------------------------------------
-- conclude: as before, with the details that the entry keeps, as in complete, and no steps.

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

CREATE OR REPLACE FUNCTION campanile.conclude(
    space text, asked bytea, its_token bigint, its_owner bigint, its_reply bytea, retention bigint
) RETURNS timestamptz
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT campanile.conclude(space, asked, its_token, its_owner, its_reply, NULL, retention)';

-- ---------------------------------------------------------------------------------------------------
-- record_step: records the result of a step of each key's handler. The first result of a name is kept.
-- Names are UTF-8. Nothing is recorded if a name has more than 64 bytes, or if the steps of a key would
-- exceed 64 KiB, or cannot be read.
--
-- The steps of an entry are a sequence: the length of the name in one byte, the name, the length of the
-- result in four bytes, the result. Only this function looks into them.
--
-- Returns the steps of the entries, too.

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
-- describe: decodes the details of an entry. Absent and unreadable parts are null. A key or a name
-- that is not UTF-8 is shown in hexadecimal, as is a key that was cut within a character.
--
-- If owner is not that of the entry, the details are those of an earlier grant: the last one was
-- granted to a process of version 3.

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

REVOKE ALL ON FUNCTION
    campanile.acquire(text, bytea[], bigint[], bigint[], bigint[], bytea[], bigint, integer, bigint),
    campanile.complete(text, bytea[], bigint[], bigint[], bytea[], bytea[], bigint),
    campanile.adopt(text, bytea[], bigint[], bigint[], integer[], bigint[], bytea[], bytea[], bigint),
    campanile.conclude(text, bytea, bigint, bigint, bytea, bytea, bigint),
    campanile.has_step(bytea, bytea), campanile.persist(text, bytea[]),
    campanile.record_step(text, bytea[], bigint[], bigint[], bytea[], bytea[], bigint)
FROM PUBLIC;

-- A role that only reads entries needs no permission on a function. Nobody learns from as_text,
-- describe and scan what they may not read.
GRANT EXECUTE ON FUNCTION campanile.version, campanile.after TO PUBLIC;
