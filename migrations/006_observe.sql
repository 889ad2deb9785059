-- Shadow mode: what a check would say, without standing in anybody's way.
SET LOCAL search_path = pg_catalog, pg_temp;

-- record_at_once notes a token if that takes no waiting, and otherwise leaves
-- it to a later transaction.
CREATE FUNCTION wirefence.record_at_once(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms'
AS $$
DECLARE
    known wirefence.resource_locks;
BEGIN
    IF pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
        IF wirefence.verdict(token, source, known) IN ('record', 'name') THEN
            PERFORM wirefence.announce(resource, token);
            PERFORM wirefence.record(resource, token, source);
        END IF;
    END IF;
EXCEPTION WHEN OTHERS THEN
    NULL;
END
$$;

-- observe returns null where check would accept, else the SQLSTATE, the message
-- and the detail of the refusal. It raises nothing, ends nobody and waits for
-- no one.
CREATE FUNCTION wirefence.observe(fence text, default_resource text, required boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    recording boolean := current_setting('transaction_read_only') = 'off'
        AND current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable');
    pairs record;
    pair record;
    message text;
    detail text;
BEGIN
    fence := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    IF fence IS NULL THEN
        IF required THEN
            PERFORM wirefence.observing(true), wirefence.refuse_unfenced();
        END IF;
        RETURN NULL;
    END IF;
    PERFORM wirefence.observing(true);
    pairs := wirefence.parsed(fence, default_resource);
    PERFORM wirefence.observing(false);
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(pairs.resources, pairs.tokens, pairs.sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY u.resource COLLATE "C"
    LOOP
        IF pair.verdict LIKE 'WF%' THEN
            PERFORM wirefence.observing(true), wirefence.refuse(pair.verdict, pair.resource, pair.token, pair.source, pair.known);
        ELSIF pair.verdict IN ('record', 'name') AND recording THEN
            PERFORM wirefence.record_at_once(pair.resource, pair.token, pair.source);
        END IF;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ': ' || message || coalesce('. ' || nullif(detail, ''), '');
END
$$;

-- observe_read is observe for a read.
CREATE FUNCTION wirefence.observe_read(fence text, default_resource text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted boolean;
BEGIN
    PERFORM wirefence.observing(true);
    wanted := wirefence.wants_read_check(fence, default_resource);
    PERFORM wirefence.observing(false);
    RETURN CASE WHEN wanted THEN wirefence.observe(fence, default_resource, false) END;
EXCEPTION WHEN OTHERS THEN
    RETURN wirefence.observe(fence, default_resource, false); -- which words it
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.observe(text, text, boolean), wirefence.observe_read(text, text) TO PUBLIC;
