-- Checks that are made under conditions: of reads, where a resource wants them, and in
-- shadow mode, where a check only says what it would, in nobody's way but where it
-- records a higher token.
SET LOCAL search_path = pg_catalog, pg_temp;

-- reads_are_checked reports whether some resource has reads = check. Those who set
-- it replace this function. A proxy finds it in the catalog by its text, and puts no
-- checks before reads where it is false.
CREATE FUNCTION wirefence.reads_are_checked() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT false';

-- wants_read_check reports whether a fence, or the session variable's, names a
-- resource whose reads are checked.
CREATE FUNCTION wirefence.wants_read_check(fence text, default_resource text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    fence := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    RETURN fence IS NOT NULL AND wirefence.reads_are_checked() AND EXISTS (
        SELECT FROM unnest((wirefence.parsed(fence, default_resource)).resources) AS u(resource)
        JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        WHERE l.reads = 'check');
END
$$;

-- check_read is check for a read: it does nothing unless the fence names a resource
-- whose reads are checked. As it holds the lock until the transaction ends, nothing
-- is read by a holder whose successor has been sealed. That takes a look behind the
-- lock, which neither a standby offers nor an old snapshot that may lock no row.
CREATE FUNCTION wirefence.check_read(fence text, default_resource text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT wirefence.wants_read_check(fence, default_resource) THEN
        RETURN NULL;
    ELSIF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'
          AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'WF006',
            MESSAGE = 'this read can''t be fenced',
            DETAIL = CASE WHEN pg_is_in_recovery() THEN 'A standby lags behind: it can''t tell whether a token is current.'
                ELSE 'The transaction is READ ONLY and reads by a snapshot, which may be older than a takeover.' END,
            HINT = CASE WHEN pg_is_in_recovery() THEN 'Read from the primary.'
                ELSE 'Use READ COMMITTED, or a transaction that isn''t READ ONLY.' END;
    END IF;
    RETURN wirefence.check(fence, default_resource, false);
END
$$;

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

GRANT EXECUTE ON FUNCTION wirefence.check_read(text, text), wirefence.observe(text, text, boolean),
    wirefence.observe_read(text, text) TO PUBLIC;
