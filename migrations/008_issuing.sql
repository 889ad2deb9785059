-- The functions for the issuer of tokens: record grants and list resources. The table of the
-- operators' changes is here because a seal respects them.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE wirefence.resource_changes (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource_id text COLLATE "C",
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by  text NOT NULL DEFAULT session_user,
    application text NOT NULL DEFAULT current_setting('application_name'),
    reason      text NOT NULL,
    settings    jsonb NOT NULL
);

CREATE INDEX ON wirefence.resource_changes (resource_id);

COMMENT ON TABLE wirefence.resource_changes IS 'The changes that operators made to resources, with their reasons. Settings that a resource gets by itself, such as its first source, are not here.';
COMMENT ON COLUMN wirefence.resource_changes.resource_id IS 'Null for settings of all resources.';
COMMENT ON COLUMN wirefence.resource_changes.changed_by IS 'The role that was logged in.';
COMMENT ON COLUMN wirefence.resource_changes.application IS 'The application_name of the session. It distinguishes operators who share a role. For a caller of the HTTP API it is wirefence-api/NAME.';
COMMENT ON COLUMN wirefence.resource_changes.settings IS 'Each setting that was named, with its value before and after.';

-- require_durable_commit makes the commit of a grant wait for the disk, and for synchronous
-- standbys if there are any, whatever the setting of the role. If a crash or a failover could
-- undo a seal, the older holder could write again. If that wait is cancelled, PostgreSQL
-- commits all the same and sends a warning, which must reach the issuer.
CREATE FUNCTION wirefence.require_durable_commit() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF current_setting('client_min_messages') = 'error' THEN
        PERFORM set_config('client_min_messages', 'warning', true);
    END IF;
END
$$;

-- source_is_open reports whether only clients have named the source of the tokens of a
-- resource, so that the first seal decides it.
CREATE FUNCTION wirefence.source_is_open(known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (known).sealed_at IS NULL AND NOT (known).must_name_source
       AND NOT EXISTS (SELECT FROM wirefence.resource_changes AS c WHERE c.resource_id = (known).resource_id AND c.settings ? 'source')
$$;

-- renumber raises the last token of a resource whose grants may be lost. The new token is
-- granted to nobody; the next grant exceeds it.
CREATE FUNCTION wirefence.renumber(resource text, preempt_after interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.lock_exclusive(resource, NULL, NULL, preempt_after), wirefence.require_durable_commit();
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, advance, failover, sealed_under)
    VALUES (resource, wirefence.next_token(NULL), 'grant', (SELECT s.failover FROM wirefence.settings AS s), wirefence.identity())
    ON CONFLICT (resource_id) DO UPDATE SET
        last_token = wirefence.next_token(l), holder = NULL, granted_at = NULL,
        updated_at = clock_timestamp(), sealed_under = excluded.sealed_under
    WHERE wirefence.is_former(l);
END
$$;

-- seal returns false, too, if grants of the resource may be lost or were forgotten; then it has raised
-- last_token, and the next token must exceed that. It raises WF003 if an operator or an earlier seal has
-- named another source for the resource. A null source names none.
--
-- The first seal sets advance to grant, unless an operator has set it.
CREATE FUNCTION wirefence.seal(resource text, token bigint, holder text DEFAULT NULL, source text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known wirefence.resource_locks;
    max_wait interval := '5 s';
    expected text; -- the source; null if this seal decides it
BEGIN
    IF wirefence.citus_group() <> '' THEN
        RETURN wirefence.at_coordinator('seal', resource, token::text, holder, source);
    ELSIF coalesce(octet_length(resource), 0) NOT BETWEEN 1 AND 255 THEN
        PERFORM wirefence.refuse_malformed('a resource name must have 1 to 255 bytes');
    ELSIF token IS NULL OR token < 1 THEN
        PERFORM wirefence.refuse_malformed('a token must be at least 1');
    ELSIF holder IS NOT NULL THEN
        PERFORM wirefence.check_lease_text('a holder', holder);
    END IF;
    PERFORM wirefence.read_source(source);
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF FOUND THEN
        IF NOT wirefence.source_is_open(known) THEN
            IF wirefence.is_foreign(source, known) THEN
                PERFORM wirefence.suppress_counting(true), wirefence.refuse('WF003', resource, token, source, known);
            END IF;
            expected := source;
        END IF;
        max_wait := known.preempt_after;
    ELSIF wirefence.must_be_declared() THEN
        PERFORM wirefence.refuse_unknown(resource);
    END IF;
    IF known.last_token = 9223372036854775807 THEN
        RETURN false;
    ELSIF wirefence.is_former(known) THEN
        PERFORM wirefence.renumber(resource, max_wait);
        RETURN false;
    ELSIF known.resource_id IS NULL AND token <= wirefence.forgotten_floor() THEN
        INSERT INTO wirefence.resource_locks (resource_id, last_token, failover, forgotten_token)
        SELECT resource, s.floor, s.failover, s.floor FROM wirefence.settings AS s
        ON CONFLICT DO NOTHING;
        RETURN false;
    ELSIF token <= known.last_token THEN
        RETURN false;
    END IF;
    IF wirefence.lock_exclusive(resource, token, expected, max_wait) THEN
        PERFORM wirefence.require_durable_commit();
        INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, source, holder, granted_at, sealed_at, advance, failover, sealed_under)
        VALUES (resource, token, seal.source, holder, clock_timestamp(), clock_timestamp(), 'grant', (SELECT s.failover FROM wirefence.settings AS s), wirefence.identity())
        ON CONFLICT (resource_id) DO UPDATE SET
            last_token = excluded.last_token, holder = excluded.holder,
            source = CASE WHEN wirefence.source_is_open(l) THEN excluded.source ELSE coalesce(l.source, excluded.source) END,
            granted_at = excluded.granted_at, sealed_at = excluded.sealed_at, updated_at = excluded.sealed_at,
            sealed_under = excluded.sealed_under,
            advance = CASE WHEN l.sealed_at IS NULL AND NOT EXISTS (
                               SELECT FROM wirefence.resource_changes AS c
                               WHERE c.resource_id = l.resource_id AND c.settings ? 'advance')
                           THEN 'grant' ELSE l.advance END
        WHERE l.last_token < excluded.last_token AND (wirefence.source_is_open(l) OR NOT wirefence.is_foreign(excluded.source, l));
        IF FOUND THEN -- a worker of Citus may have had a higher token
            RETURN wirefence.citus_group() IS NULL OR NOT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = resource AND l.last_token > token);
        END IF;
    END IF;
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF wirefence.is_foreign(source, known) AND NOT wirefence.source_is_open(known) THEN
        PERFORM wirefence.suppress_counting(true), wirefence.refuse('WF003', resource, token, source, known);
    END IF;
    RETURN false;
END
$$;

-- refuse_exhausted raises 22003 for a resource whose last token is too high for another one.
-- Only a client that invents tokens can cause that.
CREATE FUNCTION wirefence.refuse_exhausted(resource text, last_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE numeric_value_out_of_range USING
        MESSAGE = 'resource ' || wirefence.quote_name(resource) || ' has no further token',
        DETAIL = 'The last token is ' || last_token || '.',
        HINT = 'To restart its tokens, run wirefence resource set with --source and a lower --last-token.';
END
$$;

-- The writers of status have a checked transaction or a hold of the session. former says that the
-- resource was sealed before a promotion or a restore, so that it accepts no token until the next seal;
-- on a standby it is always false.
CREATE FUNCTION wirefence.status()
RETURNS TABLE (resource text, last_token bigint, holder text, granted_at timestamptz,
               advance text, reuse text, preempt_after interval, writers bigint, mode text, failover text, former boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.resource_id, l.last_token, l.holder, l.granted_at, l.advance, l.reuse, l.preempt_after, coalesce(h.writers, 0), l.mode,
           l.failover, CASE WHEN NOT pg_is_in_recovery() AND l.pinned_to IS NOT NULL THEN l.pinned_to <> wirefence.identity() ELSE false END
    FROM wirefence.resource_locks AS l
    LEFT JOIN (SELECT h.key, count(*) AS writers FROM wirefence.lock_holders AS h GROUP BY h.key) AS h
        ON h.key = wirefence.lock_key(l.resource_id)
    WHERE NOT wirefence.is_forgotten(l)
    ORDER BY l.resource_id;
$$;

-- idle_holders and asynchronous_standbys are for the doctor, whose role may not see the state of
-- others' sessions. They return nothing of what these execute.
CREATE FUNCTION wirefence.idle_holders()
RETURNS TABLE (resource text, pid integer, login text, application text, superuser boolean, idle interval)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.resource_id, h.pid, coalesce(a.usename, '-'), coalesce(a.application_name, ''), coalesce(r.rolsuper, false),
           CASE WHEN a.state LIKE 'idle in transaction%' THEN clock_timestamp() - a.state_change WHEN a.state IS NOT NULL THEN interval '0' END
    FROM wirefence.resource_locks AS l
    JOIN wirefence.lock_holders AS h ON h.key = wirefence.lock_key(l.resource_id)
    JOIN pg_stat_activity AS a ON a.pid = h.pid
    LEFT JOIN pg_roles AS r ON r.oid = a.usesysid;
$$;

CREATE FUNCTION wirefence.asynchronous_standbys() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FROM pg_stat_replication AS r
    WHERE r.application_name <> 'pg_basebackup' AND coalesce(r.sync_state, 'unknown') NOT IN ('sync', 'quorum');
$$;

GRANT SELECT ON wirefence.resource_changes TO wirefence_issuer;
GRANT EXECUTE ON FUNCTION wirefence.seal(text, bigint, text, text), wirefence.status(), wirefence.idle_holders(), wirefence.asynchronous_standbys(), wirefence.identity() TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.seal(text, bigint, text, text) IS 'Records a grant: the token and its holder. It waits for transactions with older tokens, terminates them after preempt_after of the resource, and returns false if the token is not higher than the last one. Once it has committed, no transaction with an older token can commit. source is the lock service that counts the tokens, such as redis: the resource records it, and refuses tokens of another with WF003.';
COMMENT ON FUNCTION wirefence.asynchronous_standbys() IS 'Returns how many standbys no commit waits for. It includes those of which wirefence_owner may not see that.';
COMMENT ON FUNCTION wirefence.idle_holders() IS 'Returns each session that holds a resource, with its login and application, and for how long it has been idle in a transaction: null where wirefence_owner may not see that.';
COMMENT ON FUNCTION wirefence.status() IS 'Returns each resource with its last token, the holder and the time of the grant, its policy, and how many sessions a takeover would have to wait for.';
