-- Leases in PostgreSQL itself, for users without another lease store. The leases are in an
-- unlogged table: a crash or a failover empties it, which frees every lease. The tokens are in
-- resource_locks, which survives, so no token is granted twice. All times are by the clock of
-- this server.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE UNLOGGED TABLE wirefence.leases (
    resource_id text COLLATE "C" PRIMARY KEY,
    grant_hash  text COLLATE "C" NOT NULL,
    holder      text NOT NULL,
    expires_at  timestamptz NOT NULL
) WITH (fillfactor = 70);

COMMENT ON TABLE wirefence.leases IS 'The leases of the PostgreSQL store: the holder of each resource, and until when. A row may have expired; it blocks nobody.';

GRANT SELECT ON wirefence.leases TO wirefence_issuer;

-- check_lease_text raises 22023 for a text that is empty or too long.
CREATE FUNCTION wirefence.check_lease_text(what text, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(octet_length(name), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = what || ' must have 1 to 255 bytes',
            DETAIL = CASE WHEN name IS NULL THEN 'It is null.' ELSE 'It has ' || octet_length(name) || ' bytes.' END;
    END IF;
END
$$;

CREATE FUNCTION wirefence.check_ttl(ttl interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF ttl IS NULL OR ttl <= interval '0' OR ttl > interval '366 days' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'the time to live of a lease must be more than 0 and at most 366 days',
            DETAIL = 'It is ' || coalesce(ttl::text, 'null') || '.';
    END IF;
END
$$;

-- seal_next_token seals a token above all others of the resource and returns it.
CREATE FUNCTION wirefence.seal_next_token(resource text, holder text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint;
BEGIN
    FOR round IN 1..8 LOOP -- more than one round only while other sessions raise the token
        last := coalesce((SELECT l.last_token FROM wirefence.resource_locks AS l WHERE l.resource_id = resource), 0);
        IF last = 9223372036854775807 THEN
            PERFORM wirefence.refuse_exhausted(resource, last);
        ELSIF wirefence.seal(resource, last + 1, holder, 'postgres') THEN
            RETURN last + 1;
        END IF;
    END LOOP;
    RAISE lock_not_available USING
        MESSAGE = 'could not seal the lease of resource ' || wirefence.quote_name(resource),
        DETAIL = 'In each of 8 attempts, another session recorded a token first.',
        HINT = 'Try again.';
END
$$;

-- Clients call acquire, renew and release. These run with the rights of the caller, refuse
-- callers that are not issuers, and call the functions that do the work.
--
-- require_issuer refuses a caller without the rights of wirefence_issuer, as PostgreSQL does
-- by itself, and says how to grant them. It is no protection by itself: the functions behind
-- acquire, renew and release are granted to the issuer alone.
CREATE FUNCTION wirefence.require_issuer(called text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT has_function_privilege('wirefence.acquire_lease(text, text, interval, text)', 'EXECUTE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'permission denied for function ' || called,
            HINT = format('Let an administrator run GRANT wirefence_issuer TO %I. The role may then also seal and revoke the tokens of every resource. Leases over HTTP need no role in the database.', current_user);
    END IF;
END
$$;

-- A grant_id is a secret of its holder. hash_grant turns it into what is stored, and sent to
-- the coordinator of Citus, where texts of statements contain the arguments. No role may call the
-- functions that take hashes: they are parts of acquire_lease, renew_lease and release_lease.
CREATE FUNCTION wirefence.hash_grant(resource text, grant_id text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.check_lease_text('a resource name', resource);
    PERFORM wirefence.check_lease_text('a grant id', grant_id);
    RETURN encode(sha256(convert_to(grant_id, 'UTF8')), 'hex');
END
$$;

-- take_lease writes the row of a lease if that is free, ahead of the seal: a late renewal of the
-- former holder either succeeds, and nothing is sealed, or finds the lease taken. The winner may wait
-- long in its seal, and other callers get their answer at once: the lock of the row tells them, which
-- no stranger can take.
CREATE FUNCTION wirefence.take_lease(resource text, holder text, ttl interval, grant_hash text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
AS $$
BEGIN
    INSERT INTO wirefence.leases AS l (resource_id, grant_hash, holder, expires_at)
    VALUES (resource, take_lease.grant_hash, take_lease.holder, clock_timestamp() + ttl)
    ON CONFLICT (resource_id) DO UPDATE
    SET grant_hash = excluded.grant_hash, holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.grant_hash = excluded.grant_hash OR l.expires_at <= clock_timestamp();
    RETURN FOUND;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

CREATE FUNCTION wirefence.acquire_hashed(resource text, holder text, ttl interval, grant_hash text,
                                         OUT token bigint, OUT expires_at timestamptz, OUT held_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF wirefence.citus_group() <> '' THEN
        SELECT a.* INTO token, expires_at, held_by
        FROM jsonb_to_record(wirefence.at_coordinator('acquire_hashed', resource, holder, ttl::text, grant_hash)) AS a(token bigint, expires_at timestamptz, held_by text);
        RETURN;
    END IF;
    PERFORM wirefence.check_lease_text('a holder', holder);
    PERFORM wirefence.check_ttl(ttl);
    -- A caller that can't win takes no lock, so it blocks nobody.
    IF EXISTS (SELECT FROM wirefence.leases AS l WHERE l.resource_id = resource AND l.grant_hash <> acquire_hashed.grant_hash AND l.expires_at > clock_timestamp())
       OR NOT wirefence.take_lease(resource, holder, ttl, acquire_hashed.grant_hash) THEN
        SELECT l.holder, l.expires_at INTO held_by, expires_at FROM wirefence.leases AS l WHERE l.resource_id = resource AND l.expires_at > clock_timestamp();
        RETURN;
    END IF;
    token := wirefence.seal_next_token(resource, acquire_hashed.holder);
    UPDATE wirefence.leases AS l SET expires_at = clock_timestamp() + ttl WHERE l.resource_id = resource
    RETURNING l.expires_at INTO acquire_hashed.expires_at;
END
$$;

-- acquire_lease tries once to win the lease, and seals the grant in the same transaction:
-- call it outside any other. It does not wait for a holder, but a winner waits, as a seal
-- does, for transactions with an older token. The ttl begins when that wait has ended.
--
-- If the caller wins, token is not null, and renew and release need grant_id. Otherwise
-- held_by and expires_at describe the present lease; they are null while another caller is
-- winning it. With the grant_id of a former call whose answer was lost, the caller wins its
-- own lease again with a higher token. A grant_id must never be used for two grants.
CREATE FUNCTION wirefence.acquire_lease(resource text, holder text, ttl interval, INOUT grant_id text,
                                        OUT token bigint, OUT expires_at timestamptz, OUT held_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    grant_id := coalesce(grant_id, gen_random_uuid()::text);
    SELECT a.* INTO token, expires_at, held_by
    FROM wirefence.acquire_hashed(resource, holder, ttl, wirefence.hash_grant(resource, grant_id)) AS a;
    IF token IS NULL THEN
        grant_id := NULL;
    END IF;
END
$$;

CREATE FUNCTION wirefence.acquire(resource text, holder text, ttl interval, INOUT grant_id text DEFAULT NULL,
                                  OUT token bigint, OUT expires_at timestamptz, OUT held_by text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.require_issuer('acquire');
    SELECT a.* INTO grant_id, token, expires_at, held_by FROM wirefence.acquire_lease(resource, holder, ttl, grant_id) AS a;
END
$$;

-- renew_hashed restarts the ttl and reports whether the lease was still held. It never revives
-- an expired lease.
CREATE FUNCTION wirefence.renew_hashed(resource text, grant_hash text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF wirefence.citus_group() <> '' THEN
        RETURN wirefence.at_coordinator('renew_hashed', resource, grant_hash, ttl::text);
    END IF;
    PERFORM wirefence.check_ttl(ttl);
    UPDATE wirefence.leases AS l SET expires_at = clock_timestamp() + ttl
    WHERE l.resource_id = resource AND l.grant_hash = renew_hashed.grant_hash AND l.expires_at > clock_timestamp();
    RETURN FOUND;
END
$$;

CREATE FUNCTION wirefence.renew_lease(resource text, grant_id text, ttl interval) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT wirefence.renew_hashed(resource, wirefence.hash_grant(resource, grant_id), ttl) $$;

CREATE FUNCTION wirefence.renew(resource text, grant_id text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.require_issuer('renew');
    RETURN wirefence.renew_lease(resource, grant_id, ttl);
END
$$;

-- release_notice returns a hash, because every role may listen and must not learn names of resources.
CREATE FUNCTION wirefence.release_notice(resource text) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
AS $$ SELECT encode(sha256(convert_to(resource, 'UTF8')), 'hex') $$;

-- release_hashed frees the resource, notifies the listeners on the channel wirefence_released,
-- and reports whether the lease was still held.
CREATE FUNCTION wirefence.release_hashed(resource text, grant_hash text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_held boolean;
BEGIN
    IF wirefence.citus_group() <> '' THEN
        RETURN wirefence.at_coordinator('release_hashed', resource, grant_hash);
    END IF;
    DELETE FROM wirefence.leases AS l WHERE l.resource_id = resource AND l.grant_hash = release_hashed.grant_hash
    RETURNING l.expires_at > clock_timestamp() INTO was_held;
    IF was_held THEN
        PERFORM pg_notify('wirefence_released', wirefence.release_notice(resource));
    END IF;
    RETURN coalesce(was_held, false);
END
$$;

CREATE FUNCTION wirefence.release_lease(resource text, grant_id text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT wirefence.release_hashed(resource, wirefence.hash_grant(resource, grant_id)) $$;

CREATE FUNCTION wirefence.release(resource text, grant_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.require_issuer('release');
    RETURN wirefence.release_lease(resource, grant_id);
END
$$;

-- end_lease deletes the lease of a resource; the next renewal of its holder finds it gone. It
-- notifies the waiters. The caller holds the lock of the resource exclusively. An acquire may
-- be under way that has locked the row of the lease and waits for that same lock, so
-- end_lease must not wait for the row. If the acquire has just committed, or only reads the
-- holder, the row is unlocked in a moment. Otherwise the lease stays, as it will get a token
-- above all earlier ones.
CREATE FUNCTION wirefence.end_lease(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    FOR round IN 1..20 LOOP
        DELETE FROM wirefence.leases AS l
        USING (SELECT f.grant_hash FROM wirefence.leases AS f WHERE f.resource_id = resource FOR UPDATE SKIP LOCKED) AS free
        WHERE l.resource_id = resource AND l.grant_hash = free.grant_hash;
        IF FOUND THEN
            PERFORM pg_notify('wirefence_released', wirefence.release_notice(resource));
            RETURN;
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM wirefence.leases AS l WHERE l.resource_id = resource);
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$;

CREATE FUNCTION wirefence.revoke(resource text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint;
    bumped bigint;
BEGIN
    IF wirefence.citus_group() <> '' THEN
        RETURN wirefence.at_coordinator('revoke', resource);
    END IF;
    SELECT l.last_token INTO last FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF last = 9223372036854775807 THEN
        PERFORM wirefence.refuse_exhausted(resource, last);
    ELSIF FOUND THEN
        PERFORM set_config('wirefence.ended', '', true);
        PERFORM wirefence.lock_exclusive(resource, NULL, NULL, interval '0');
        PERFORM wirefence.end_lease(resource);
        PERFORM wirefence.require_durable_commit();
        UPDATE wirefence.resource_locks AS l
        SET last_token = wirefence.lockout_token(l), holder = NULL, granted_at = NULL, updated_at = clock_timestamp(),
            sealed_under = CASE l.advance WHEN 'use' THEN l.sealed_under ELSE wirefence.identity() END
        WHERE l.resource_id = resource
        RETURNING l.last_token INTO bumped;
    END IF;
    IF bumped IS NULL THEN
        PERFORM wirefence.refuse_unknown(resource);
    END IF;
    RETURN bumped;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.acquire_lease(text, text, interval, text), wirefence.renew_lease(text, text, interval),
    wirefence.release_lease(text, text), wirefence.release_notice(text),
    wirefence.revoke(text) TO wirefence_issuer;

-- Everybody may call these functions: they refuse callers that are not issuers.
GRANT EXECUTE ON FUNCTION wirefence.require_issuer(text), wirefence.acquire(text, text, interval, text),
    wirefence.renew(text, text, interval), wirefence.release(text, text) TO PUBLIC;

COMMENT ON FUNCTION wirefence.acquire(text, text, interval, text) IS 'Tries once to acquire the lease of a resource in the PostgreSQL store, for a time to live of more than 0 and at most 366 days, and seals its token. token is null if another holder has the lease. A repeated call with the same grant_id acquires the same lease with a higher token.';
COMMENT ON FUNCTION wirefence.renew(text, text, interval) IS 'Restarts the time to live of a lease. False: the lease is lost; it cannot be renewed any more.';
COMMENT ON FUNCTION wirefence.release(text, text) IS 'Releases a lease. False: it was not held any more.';
COMMENT ON FUNCTION wirefence.release_notice(text) IS 'Returns the payload by which the channel wirefence_released announces that a resource was released.';
COMMENT ON FUNCTION wirefence.revoke(text) IS 'Raises the last token, terminates the transactions that hold the resource at once, and releases its lease in the PostgreSQL store. It returns the new last token, which nobody was granted. The history records wirefence.reason.';
