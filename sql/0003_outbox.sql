-- Version 3 of Campanile's schema: messages for Kafka, written in a handler's transaction.
-- They are published after its commit.
--
-- Run it once, in one transaction, as the owner of the schema, and repeat the grant for the new
-- functions:
--
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;

INSERT INTO campanile.migration (version) VALUES (3);

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
-- topics.

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

REVOKE ALL ON FUNCTION campanile.publish, campanile.relay, campanile.backlog FROM PUBLIC;
