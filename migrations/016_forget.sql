-- Forgetting resources, so that a database with a resource for each invoice does not keep their rows
-- for ever. settings.floor stands for all rows that are gone: their names accept no token up to it
-- and are granted none.
--
-- A check reads a row, takes the lock, and then asks whether the row is still the newest. That
-- notices an update, but no deletion. So a row goes in two steps. The first marks it, under the
-- exclusive lock: from its commit on the resource counts as unknown. The second deletes it, once
-- every snapshot that may still be read shows the mark.
SET LOCAL search_path = pg_catalog, pg_temp;

-- guard_may_name reports whether a declared guard names a resource, or may do so by its template. A
-- template that begins with a column does not count: any role could keep all rows by such a guard.
CREATE FUNCTION wirefence.guard_may_name(resource text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM wirefence.guards AS named
        WHERE CASE WHEN named.template THEN named.resource !~ '^[{][^{]' AND guard_may_name.resource LIKE (
                        SELECT string_agg(CASE WHEN p.is_column THEN '%' ELSE regexp_replace(p.part, '([\\%_])', '\\\1', 'g') END, '' ORDER BY p.place)
                        FROM wirefence.name_parts(named.resource) WITH ORDINALITY AS p(part, is_column, place))
                   ELSE guard_may_name.resource = named.resource COLLATE "C" END)
$$;

-- kept_for returns why a resource must not be forgotten, null if it may be. The floor must leave
-- numbers to Wirefence and to other services, so a token that is higher than those of a clock, as
-- next_token counts it, stays in its row.
CREATE FUNCTION wirefence.kept_for(known wirefence.resource_locks) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN wirefence.must_be_declared() THEN 'Resources must be declared here, and its row is its declaration'
        WHEN (known).reuse = 'once' OR (known).must_name_source
             OR EXISTS (SELECT FROM wirefence.resource_changes AS c WHERE c.resource_id = (known).resource_id) THEN 'An operator has declared or set it'
        WHEN EXISTS (SELECT FROM wirefence.leases AS l WHERE l.resource_id = (known).resource_id AND l.expires_at > clock_timestamp()) THEN 'Its lease is held'
        WHEN wirefence.guard_may_name((known).resource_id) THEN 'A guard names it'
        WHEN (known).last_token > floor(extract(epoch FROM clock_timestamp()))::bigint << 20
            THEN 'Its last token, ' || (known).last_token || ', is so high that other resources would lack numbers' END
$$;

-- is_seen_by_all reports whether every snapshot in this database sees a version of a row. A snapshot
-- that is taken from now on does. An older one sees it if no transaction from before it was running:
-- backend_xmin is the oldest of these, and every role may see it. The transaction that wrote the
-- version is not over, so it never deletes what it has marked.
CREATE FUNCTION wirefence.is_seen_by_all(writer xid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    RETURN age(writer) > greatest(0, (
        SELECT max(age(a.backend_xmin)) FROM pg_stat_activity AS a
        WHERE a.datid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) AND a.pid <> pg_backend_pid()));
END
$$;

-- forget returns false if the row is still there, since an older transaction may read it, or a session
-- uses the lock. It ends no session, and waits for none but an operator's change of the resource.
--
-- A caller that read last_token and then found the lease free in another store forgets no later grant.
CREATE FUNCTION wirefence.forget(resource text, last_token bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known wirefence.resource_locks;
    writer xid;
    is_free boolean;
    reason text;
BEGIN
    IF wirefence.citus_group() IS NOT NULL THEN
        RAISE feature_not_supported USING MESSAGE = 'resources cannot be forgotten where each node of Citus has the tokens';
    END IF;
    is_free := pg_try_advisory_xact_lock(wirefence.lock_key(resource));
    PERFORM FROM wirefence.resource_locks AS l WHERE is_free AND l.resource_id = resource FOR UPDATE; -- an operator's change takes no other lock
    SELECT l.* INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF NOT FOUND THEN
        RETURN true;
    ELSIF wirefence.is_forgotten(known) THEN
        SELECT l.xmin INTO writer FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
        IF NOT is_free OR NOT wirefence.is_seen_by_all(writer) THEN
            RETURN false;
        END IF;
        PERFORM wirefence.end_lease(resource);
        DELETE FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
        RETURN true;
    END IF;
    reason := CASE WHEN NOT is_free THEN 'A session uses it'
        WHEN known.last_token <> forget.last_token THEN 'Its last token is ' || known.last_token || ' meanwhile' ELSE wirefence.kept_for(known) END;
    IF reason IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'resource ' || wirefence.quote_name(resource) || ' cannot be forgotten',
            DETAIL = reason || '.';
    END IF;
    UPDATE wirefence.settings AS s
    SET floor = greatest(s.floor, known.last_token), forgot_grants = s.forgot_grants OR known.advance = 'grant'
    WHERE s.floor < known.last_token OR known.advance = 'grant' AND NOT s.forgot_grants;
    UPDATE wirefence.resource_locks AS l
    SET forgotten_token = l.last_token, updated_at = clock_timestamp(), advance = 'use',
        source = NULL, holder = NULL, granted_at = NULL, sealed_at = NULL, sealed_under = NULL
    WHERE l.resource_id = resource;
    RETURN false;
END
$$;

CREATE FUNCTION wirefence.forgettable(unused_for interval)
RETURNS TABLE (resource text, last_token bigint, source text, forgotten boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF unused_for IS NULL OR unused_for < interval '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'unused_for must be at least 0';
    END IF;
    RETURN QUERY
    SELECT l.resource_id, l.last_token, l.source, wirefence.is_forgotten(l)
    FROM wirefence.resource_locks AS l
    WHERE wirefence.is_forgotten(l) OR coalesce(l.granted_at, l.updated_at) <= clock_timestamp() - unused_for AND wirefence.kept_for(l) IS NULL
    ORDER BY l.resource_id;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.forget(text, bigint), wirefence.forgettable(interval) TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.forget(text, bigint) IS 'Makes a resource unknown and removes its row, in two calls that must not be in one transaction: false, it is unknown from now on; true, the row is gone. Between them, transactions that were open at the first one must have ended. It raises 55000 for a resource that is in use or held, that an operator has declared or set, or that a guard can name. With last_token it does that only while this is the last token.';
COMMENT ON FUNCTION wirefence.forgettable(interval) IS 'Lists the resources that forget() would remove and whose last grant is at least so old, with the source of the tokens: its lease store has to be asked whether the lease is held. forgotten: the first call has been made.';
