-- Version 2 of Campanile's schema: completes an entry in the transaction of the handler's writes.
--
-- Run it once, in one transaction, as the owner of the schema, and repeat the grant for the new
-- function:
--
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA campanile TO app;

INSERT INTO campanile.migration (version) VALUES (2);

-- conclude: completes the key's grant, as the last statement of the transaction that the inbox
-- began and its handler wrote in. Returns the time of completion.
--
-- Unlike complete, it raises an error if there is nothing to complete, so that the COMMIT sent
-- after it rolls back: of all transactions of a grant, only the one that takes the entry out of
-- PROCESSING is ever committed.
--
-- CI001: the handler has ended the transaction itself. CI002: the grant no longer holds the entry,
-- or has completed it before.

CREATE FUNCTION campanile.conclude(
    space text, asked bytea, its_token bigint, its_owner bigint, its_reply bytea, retention bigint
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
        giving_up = false, permanent_failure = false, error = NULL, reply = its_reply
    WHERE e.namespace = space AND e.key = asked AND e.token = its_token AND e.owner = its_owner
        AND e.state = 'P' AND e.expires_at > clock_timestamp()
    RETURNING e.at INTO instant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the grant no longer holds the entry' USING ERRCODE = 'CI002';
    END IF;
    RETURN instant;
END
$$;

REVOKE ALL ON FUNCTION campanile.conclude FROM PUBLIC;
