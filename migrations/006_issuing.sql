-- What the issuer of tokens may do: record grants, lock holders out, look on.
SET LOCAL search_path = pg_catalog, pg_temp;

-- durable makes the commit of a grant wait for the disk. A seal that a crash
-- could undo would let the older holder in again.
CREATE FUNCTION wirefence.durable() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- seal records a grant. Once it has committed, no transaction with an older
-- token can commit. False if the token isn't higher than last_token.
CREATE FUNCTION wirefence.seal(resource text, token bigint, holder text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known wirefence.resource_locks;
    patience interval := '5 s';
BEGIN
    IF coalesce(octet_length(resource), 0) NOT BETWEEN 1 AND 255 THEN
        PERFORM wirefence.malformed('a resource name must have 1 to 255 bytes');
    ELSIF token IS NULL OR token < 1 THEN
        PERFORM wirefence.malformed('a token must be at least 1');
    END IF;
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF FOUND THEN
        IF token <= known.last_token THEN
            RETURN false;
        END IF;
        patience := known.preempt_after;
    END IF;
    IF NOT wirefence.lock_exclusive(resource, token, patience) THEN
        RETURN false;
    END IF;
    PERFORM wirefence.durable();
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, holder, granted_at, sealed_at, advance)
    VALUES (resource, token, holder, clock_timestamp(), clock_timestamp(), 'grant')
    ON CONFLICT (resource_id) DO UPDATE SET
        last_token = excluded.last_token, holder = excluded.holder,
        granted_at = excluded.granted_at, sealed_at = excluded.sealed_at, updated_at = excluded.sealed_at,
        advance = CASE WHEN l.sealed_at IS NULL THEN 'grant' ELSE l.advance END
    WHERE l.last_token < excluded.last_token;
    RETURN FOUND;
END
$$;

-- revoke locks the present holder out at once, ending whatever it has open,
-- and returns the new last_token, which is nobody's.
CREATE FUNCTION wirefence.revoke(resource text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bumped bigint;
BEGIN
    PERFORM FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF FOUND THEN
        PERFORM wirefence.lock_exclusive(resource, NULL, interval '0');
        PERFORM wirefence.durable();
        UPDATE wirefence.resource_locks AS l
        SET last_token = l.last_token + 1, holder = NULL, granted_at = NULL, updated_at = clock_timestamp()
        WHERE l.resource_id = resource
        RETURNING l.last_token INTO bumped;
    END IF;
    IF bumped IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'WF008',
            MESSAGE = 'unknown fenced resource ' || coalesce(wirefence.quoted(resource), 'null'),
            DETAIL = 'No token of it was ever recorded.',
            HINT = 'SELECT * FROM wirefence.status() lists the resources.';
    END IF;
    RETURN bumped;
END
$$;

-- status lists the resources, with how many open transactions hold each.
CREATE FUNCTION wirefence.status()
RETURNS TABLE (resource text, last_token bigint, holder text, granted_at timestamptz,
               advance text, reuse text, preempt_after interval, writers bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.resource_id, l.last_token, l.holder, l.granted_at, l.advance, l.reuse, l.preempt_after, coalesce(h.writers, 0)
    FROM wirefence.resource_locks AS l
    LEFT JOIN (SELECT h.key, count(*) AS writers FROM wirefence.lock_holders AS h GROUP BY h.key) AS h
        ON h.key = wirefence.lock_key(l.resource_id)
    ORDER BY l.resource_id;
$$;

GRANT EXECUTE ON FUNCTION wirefence.seal(text, bigint, text), wirefence.revoke(text), wirefence.status() TO wirefence_issuer;
