-- Leases in PostgreSQL itself, for those who run no other store. Who holds a
-- resource, and until when, is in an unlogged table: a crash or a failover
-- empties it, which frees every lease. The tokens are in resource_locks, which
-- survives, so none is granted twice. All times are by this server's clock.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE UNLOGGED TABLE wirefence.leases (
    resource_id text COLLATE "C" PRIMARY KEY,
    grant_id    text COLLATE "C" NOT NULL,
    holder      text NOT NULL,
    expires_at  timestamptz NOT NULL
) WITH (fillfactor = 70);

COMMENT ON TABLE wirefence.leases IS 'Who holds a lease that is kept here, and until when. A row may have expired; it hinders nobody.';

GRANT SELECT ON wirefence.leases TO wirefence_issuer;

-- lease_key is the key of the advisory lock that whoever is about to win a
-- lease has until its transaction ends.
CREATE FUNCTION wirefence.lease_key(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN hashtextextended(resource COLLATE "C", 7308324466020180333);

-- check_lease_text raises 22023 for a text that names nothing or is too long.
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

-- next_grant seals a token above all others of the resource and returns it.
CREATE FUNCTION wirefence.next_grant(resource text, holder text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint;
BEGIN
    FOR round IN 1..8 LOOP -- more than one only while others move the token on
        last := coalesce((SELECT l.last_token FROM wirefence.resource_locks AS l WHERE l.resource_id = resource), 0);
        IF last = 9223372036854775807 THEN
            PERFORM wirefence.refuse_further(resource);
        ELSIF wirefence.seal(resource, last + 1, holder, 'postgres') THEN
            RETURN last + 1;
        END IF;
    END LOOP;
    RAISE lock_not_available USING
        MESSAGE = 'the lease of ' || wirefence.quoted(resource) || ' could not be sealed',
        DETAIL = 'In each of 8 attempts, another session recorded a token first.';
END
$$;

-- acquire, renew and release are what clients call. They run with the caller's rights, refuse
-- those who are no issuers, and call the functions that do the work.
--
-- want_issuer refuses a caller without the rights of wirefence_issuer, as PostgreSQL does by
-- itself, and says how to give them. It gives no right: what its callers call is granted to the
-- issuer alone.
CREATE FUNCTION wirefence.want_issuer(called text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT has_function_privilege('wirefence.acquire_lease(text, text, interval, text)', 'EXECUTE') THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'permission denied for function ' || called,
            HINT = format('GRANT wirefence_issuer TO %I, which may then also seal and revoke the tokens of every resource. Over HTTP, leases need no role in the database.', current_user);
    END IF;
END
$$;

-- acquire_lease tries once to win the lease, and seals the grant in the same
-- transaction: call it outside of any other. It waits for no holder, but where
-- it wins it waits, as a seal does, for transactions with an older token. The
-- ttl begins when that wait is over.
--
-- If it wins, token is not null, and grant_id is what renew and release want.
-- Else held_by and expires_at tell who has the lease; they are null while
-- somebody is just about to get it. With the grant_id of a former call, whose
-- answer was lost, it is that grant's own lease that is won anew, with a higher
-- token; a grant_id must never be used for two grants.
CREATE FUNCTION wirefence.acquire_lease(resource text, holder text, ttl interval, INOUT grant_id text,
                                        OUT token bigint, OUT expires_at timestamptz, OUT held_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted CONSTANT text := coalesce(grant_id, gen_random_uuid()::text);
BEGIN
    PERFORM wirefence.check_lease_text('a resource name', resource);
    PERFORM wirefence.check_lease_text('a holder', holder);
    PERFORM wirefence.check_lease_text('a grant id', wanted);
    PERFORM wirefence.check_ttl(ttl);
    grant_id := NULL;
    -- Who can't win takes no lock, so that it stands in nobody's way.
    SELECT l.holder, l.expires_at INTO held_by, expires_at FROM wirefence.leases AS l
    WHERE l.resource_id = resource AND l.grant_id <> wanted AND l.expires_at > clock_timestamp();
    IF FOUND THEN
        RETURN;
    -- The winner may wait for long in its seal; others are told at once.
    ELSIF NOT pg_try_advisory_xact_lock(wirefence.lease_key(resource)) THEN
        RETURN;
    END IF;
    -- The row comes first: a late renewal of the former holder either counts,
    -- and nothing is sealed over its head, or finds the lease gone.
    INSERT INTO wirefence.leases AS l (resource_id, grant_id, holder, expires_at)
    VALUES (resource, wanted, acquire_lease.holder, clock_timestamp() + ttl)
    ON CONFLICT (resource_id) DO UPDATE
    SET grant_id = excluded.grant_id, holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.grant_id = excluded.grant_id OR l.expires_at <= clock_timestamp();
    IF NOT FOUND THEN
        SELECT l.holder, l.expires_at INTO held_by, expires_at FROM wirefence.leases AS l WHERE l.resource_id = resource;
        RETURN;
    END IF;
    token := wirefence.next_grant(resource, acquire_lease.holder);
    grant_id := wanted;
    UPDATE wirefence.leases AS l SET expires_at = clock_timestamp() + ttl WHERE l.resource_id = resource
    RETURNING l.expires_at INTO acquire_lease.expires_at;
END
$$;

CREATE FUNCTION wirefence.acquire(resource text, holder text, ttl interval, INOUT grant_id text DEFAULT NULL,
                                  OUT token bigint, OUT expires_at timestamptz, OUT held_by text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.want_issuer('acquire');
    SELECT a.* INTO grant_id, token, expires_at, held_by FROM wirefence.acquire_lease(resource, holder, ttl, grant_id) AS a;
END
$$;

-- renew_lease starts the ttl again and reports whether the lease was still held. It
-- never brings back one that has expired.
CREATE FUNCTION wirefence.renew_lease(resource text, grant_id text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.check_lease_text('a resource name', resource);
    PERFORM wirefence.check_lease_text('a grant id', grant_id);
    PERFORM wirefence.check_ttl(ttl);
    UPDATE wirefence.leases AS l SET expires_at = clock_timestamp() + ttl
    WHERE l.resource_id = resource AND l.grant_id = renew_lease.grant_id AND l.expires_at > clock_timestamp();
    RETURN FOUND;
END
$$;

CREATE FUNCTION wirefence.renew(resource text, grant_id text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.want_issuer('renew');
    RETURN wirefence.renew_lease(resource, grant_id, ttl);
END
$$;

-- release_notice is the payload on the channel wirefence_released by which
-- waiters learn of a release: a hash, since everybody may listen.
CREATE FUNCTION wirefence.release_notice(resource text) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
AS $$ SELECT encode(sha256(convert_to(resource, 'UTF8')), 'hex') $$;

-- release_lease frees the resource, wakes who listens on the channel
-- wirefence_released, and reports whether the lease was still held.
CREATE FUNCTION wirefence.release_lease(resource text, grant_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_held boolean;
BEGIN
    PERFORM wirefence.check_lease_text('a resource name', resource);
    PERFORM wirefence.check_lease_text('a grant id', grant_id);
    DELETE FROM wirefence.leases AS l WHERE l.resource_id = resource AND l.grant_id = release_lease.grant_id
    RETURNING l.expires_at > clock_timestamp() INTO was_held;
    IF was_held THEN
        PERFORM pg_notify('wirefence_released', wirefence.release_notice(resource));
    END IF;
    RETURN coalesce(was_held, false);
END
$$;

CREATE FUNCTION wirefence.release(resource text, grant_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.want_issuer('release');
    RETURN wirefence.release_lease(resource, grant_id);
END
$$;

-- end_lease takes the lease that is kept here from its holder, whose next renewal
-- finds it gone, and wakes who waits for it. The caller holds the resource's lock
-- exclusively. An acquire may be under way, with the lease's row locked and in wait
-- for that very lock, so that nobody must wait for the row: if the acquire has just
-- committed or only looks who has the lease, the row is free in a moment; else it
-- is left alone, as it will get a token above all that went before.
CREATE FUNCTION wirefence.end_lease(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    FOR round IN 1..20 LOOP
        IF pg_try_advisory_xact_lock(wirefence.lease_key(resource)) THEN
            DELETE FROM wirefence.leases AS l WHERE l.resource_id = resource;
        ELSE
            DELETE FROM wirefence.leases AS l
            USING (SELECT f.grant_id FROM wirefence.leases AS f WHERE f.resource_id = resource FOR UPDATE SKIP LOCKED) AS free
            WHERE l.resource_id = resource AND l.grant_id = free.grant_id;
            IF NOT FOUND THEN
                PERFORM pg_sleep(0.005);
                CONTINUE;
            END IF;
        END IF;
        IF FOUND THEN
            PERFORM pg_notify('wirefence_released', wirefence.release_notice(resource));
        END IF;
        RETURN;
    END LOOP;
END
$$;

-- revoke locks the present holder out at once, ending whatever it has open and
-- its lease if that is kept here, and returns the new last_token, which is
-- nobody's.
CREATE FUNCTION wirefence.revoke(resource text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint;
    bumped bigint;
BEGIN
    SELECT l.last_token INTO last FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF last = 9223372036854775807 THEN
        PERFORM wirefence.refuse_further(resource);
    ELSIF FOUND THEN
        PERFORM set_config('wirefence.ended', '', true);
        PERFORM wirefence.lock_exclusive(resource, NULL, NULL, interval '0');
        PERFORM wirefence.end_lease(resource);
        PERFORM wirefence.durable();
        UPDATE wirefence.resource_locks AS l
        SET last_token = wirefence.further(l), holder = NULL, granted_at = NULL, updated_at = clock_timestamp(),
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

-- Everybody may call what refuses those who are no issuers.
GRANT EXECUTE ON FUNCTION wirefence.want_issuer(text), wirefence.acquire(text, text, interval, text),
    wirefence.renew(text, text, interval), wirefence.release(text, text) TO PUBLIC;

COMMENT ON FUNCTION wirefence.acquire(text, text, interval, text) IS 'Tries once to win the lease of a resource that is kept here, for a time to live from more than 0 to 366 days, and seals its token. token is null if another holds it. The same grant_id again wins the same lease with a higher token.';
COMMENT ON FUNCTION wirefence.renew(text, text, interval) IS 'Starts the time to live of a lease again. False: the lease is lost and does not come back.';
COMMENT ON FUNCTION wirefence.release(text, text) IS 'Frees a lease. False: it was not held any more.';
COMMENT ON FUNCTION wirefence.release_notice(text) IS 'Returns the payload on the channel wirefence_released that tells of a resource.';
COMMENT ON FUNCTION wirefence.revoke(text) IS 'Raises the last token by one, which is nobody''s, ends the transactions that hold the resource at once, and frees a lease that is kept here. It returns the new last token. wirefence.reason is recorded in the history.';
