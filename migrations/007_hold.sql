-- The hold: the same verdict as that of a check, valid for the session until the session gives
-- it back. pg_locks alone shows what a session holds; a setting would be rolled back.
SET LOCAL search_path = pg_catalog, pg_temp;

-- unhold releases the locks that wirefence.hold has taken for this session, and none of the
-- application's. It does nothing if there are none.
CREATE FUNCTION wirefence.unhold() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_unlock_shared(h.key), pg_advisory_unlock_shared((h.key >> 32)::integer, (h.key & 4294967295)::bit(32)::integer)
    FROM wirefence.own_holds AS h;
END
$$;

-- unhold_marks releases the locks of an incomplete hold that unhold does not find: the second
-- locks of keys whose first lock the session did not get.
CREATE FUNCTION wirefence.unhold_marks(keys bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_unlock_shared((k.key >> 32)::integer, (k.key & 4294967295)::bit(32)::integer)
    FROM (SELECT (l.classid::bigint << 32) | l.objid::bigint AS key FROM pg_locks AS l
          WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.mode = 'ShareLock' AND l.granted AND l.objsubid = 2) AS k
    WHERE k.key = ANY (keys);
END
$$;

-- may_hold judges pairs for a hold. It raises a refusal, and returns false if a check would
-- have to write or the verdict is valid for one transaction only.
CREATE FUNCTION wirefence.may_hold(resources text[], tokens bigint[], sources text[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pair record;
    holdable boolean := true;
BEGIN
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(resources, tokens, sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY u.resource COLLATE "C"
    LOOP
        IF (pair.known).mode = 'shadow' OR (pair.known).reuse = 'once' OR pair.verdict IN ('record', 'name') THEN
            holdable := false;
        ELSIF pair.verdict <> 'pass' THEN
            PERFORM wirefence.refuse(pair.verdict, pair.resource, pair.token, pair.source, pair.known);
        END IF;
    END LOOP;
    RETURN holdable;
END
$$;

-- hold_all takes the lock of every pair for the session, in the order of the keys, and then
-- reads the verdict: all or nothing. It releases what it has taken after any error, a cancel
-- included.
CREATE FUNCTION wirefence.hold_all(resources text[], tokens bigint[], sources text[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    keys CONSTANT bigint[] := ARRAY(SELECT DISTINCT wirefence.lock_key(u.resource) FROM unnest(resources) AS u(resource) ORDER BY 1);
    key bigint;
    held boolean := true;
BEGIN
    BEGIN
        FOREACH key IN ARRAY keys LOOP
            held := pg_try_advisory_lock_shared((key >> 32)::integer, (key & 4294967295)::bit(32)::integer);
            EXIT WHEN NOT held; -- somebody else's lock has this key; hold does not wait for it
            IF NOT pg_try_advisory_lock_shared(key) THEN
                PERFORM wirefence.wait_for_shared_lock((SELECT u.resource FROM unnest(resources) AS u(resource) WHERE wirefence.lock_key(u.resource) = key LIMIT 1), 'session');
            END IF;
        END LOOP;
        IF held THEN
            held := wirefence.may_hold(resources, tokens, sources);
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
        PERFORM wirefence.unhold(), wirefence.unhold_marks(keys);
        RAISE;
    END;
    IF NOT held THEN
        PERFORM wirefence.unhold(), wirefence.unhold_marks(keys);
    END IF;
    RETURN held;
END
$$;

-- hold_now takes a hold for a session that holds nothing; its parameters are those of hold.
CREATE FUNCTION wirefence.hold_now(fence text, default_resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    variable CONSTANT text := nullif(current_setting('wirefence.token', true), '');
    pairs record;
BEGIN
    IF pg_is_in_recovery() OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            SCHEMA = wirefence.count_refusal(),
            ERRCODE = 'WF006',
            MESSAGE = CASE WHEN pg_is_in_recovery() THEN 'cannot hold a fence on a standby'
                ELSE 'cannot hold a fence in isolation level ' || current_setting('transaction_isolation') END,
            DETAIL = CASE WHEN pg_is_in_recovery() THEN 'A standby lags behind its primary and cannot judge tokens.'
                ELSE 'The snapshot of the transaction may be older than a takeover.' END,
            HINT = CASE WHEN pg_is_in_recovery() THEN 'Connect to the primary.'
                ELSE 'Call wirefence.hold in READ COMMITTED.' END;
    ELSIF fence IS NULL AND variable IS NULL THEN
        RETURN false;
    END IF;
    pairs := wirefence.parse_fence(coalesce(fence, variable), default_resource);
    IF NOT wirefence.may_hold(pairs.resources, pairs.tokens, pairs.sources) -- refuses stale tokens without a wait
       OR fence IS NOT NULL AND fence IS DISTINCT FROM variable AND wirefence.any_guards()
          AND EXISTS (SELECT FROM unnest(pairs.resources) AS u(resource) WHERE wirefence.may_be_guarded(u.resource)) THEN
        RETURN false;
    END IF;
    RETURN wirefence.hold_all(pairs.resources, pairs.tokens, pairs.sources);
END
$$;

-- give_back releases the locks of one fence that the session is known to hold. It does not
-- read pg_locks, which briefly locks the whole lock table: a busy proxy would block every
-- session by that.
CREATE FUNCTION wirefence.give_back(fence text, default_resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
DECLARE
    carried CONSTANT text := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    key bigint;
BEGIN
    IF default_resource IS NULL AND strpos(carried, ',') = 0 AND strpos(carried, '%') = 0 THEN
        key := wirefence.lock_key(split_part(carried, '=', 1));
        PERFORM pg_advisory_unlock_shared(key), pg_advisory_unlock_shared((key >> 32)::integer, (key & 4294967295)::bit(32)::integer);
        RETURN;
    END IF;
    PERFORM pg_advisory_unlock_shared(k.key), pg_advisory_unlock_shared((k.key >> 32)::integer, (k.key & 4294967295)::bit(32)::integer)
    FROM (SELECT DISTINCT wirefence.lock_key(u.resource) AS key
          FROM unnest((wirefence.parse_fence(carried, default_resource)).resources) AS u(resource)) AS k;
END
$$;

-- hold_or_check runs before a statement: it holds the fence for the session or, if it cannot
-- be held, checks it for the transaction. It returns held, or the result of check; apart
-- instead of null if the transaction is not READ COMMITTED: then the caller must ask for the
-- hold in a READ COMMITTED transaction of its own. If required is null it checks nothing, and a refusal is
-- not counted.
--
-- The frequent case, one current token of a plain name whose lock is free, is decided here.
CREATE FUNCTION wirefence.hold_or_check(fence text, default_resource text, held text, required boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried text := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    key bigint;
    taken boolean;
BEGIN
    IF held IN ('nothing', 'same') AND default_resource IS NULL AND strpos(carried, ',') = 0 AND strpos(carried, '%') = 0
       AND current_setting('transaction_isolation') = 'read committed' AND (fence IS NULL OR NOT wirefence.any_guards()) AND NOT pg_is_in_recovery() THEN
        key := wirefence.lock_key(split_part(carried, '=', 1));
        IF held = 'same' THEN -- an assignment is cheaper than a query
            taken := pg_advisory_unlock_shared(key)::integer + pg_advisory_unlock_shared((key >> 32)::integer, (key & 4294967295)::bit(32)::integer)::integer = 2;
        END IF;
        IF pg_try_advisory_lock_shared((key >> 32)::integer, (key & 4294967295)::bit(32)::integer) AND pg_try_advisory_lock_shared(key) THEN
            PERFORM FROM wirefence.resource_locks AS l
            WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried)
              AND (l.pinned_to <> wirefence.identity()) IS NOT TRUE;
            IF FOUND THEN
                RETURN 'held';
            END IF;
        END IF;
        PERFORM wirefence.unhold(), wirefence.unhold_marks(ARRAY[key]);
    ELSIF held = 'same' THEN
        PERFORM wirefence.give_back(fence, default_resource);
    ELSIF held IS DISTINCT FROM 'nothing' THEN
        PERFORM wirefence.unhold();
    END IF;
    IF required IS NULL THEN
        PERFORM wirefence.suppress_counting(true);
        taken := wirefence.hold_now(fence, default_resource);
        PERFORM wirefence.suppress_counting(false);
        RETURN CASE WHEN taken THEN 'held' END;
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RETURN coalesce(wirefence.check(fence, default_resource, required, false), 'apart');
    ELSIF NOT pg_is_in_recovery() AND wirefence.hold_now(fence, default_resource) THEN
        RETURN 'held';
    END IF;
    RETURN wirefence.check(fence, default_resource, required, false);
END
$$;

-- hold checks every pair of a fence for the session, until unhold or the next hold. While the
-- session holds the fence, no token of these resources is superseded. hold releases what the
-- session holds and takes it again, so a waiting takeover proceeds in between. A null fence
-- means the session variable.
--
-- True: every pair is held. False: nothing is held, because there is no fence, or because the
-- fence needs a check in each transaction: the check has to record a token, the resource has
-- reuse = once or mode = shadow, or a guard could not see the fence, because it is not the
-- fence of the session variable. hold raises a refusal as check does, and holds nothing then.
-- It does not count the refusal: the proxy reports the statement that it refuses for it.
--
-- held says what the session is known to hold already: nothing; same, the same fence; or
-- null, whatever pg_locks shows.
--
-- The verdict outlives the transaction, so hold must not read it in an older snapshot.
CREATE FUNCTION wirefence.hold(fence text, default_resource text, held text DEFAULT NULL) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN wirefence.hold_or_check(fence, default_resource, held, NULL) IS NOT NULL;

-- unhold releases a fence that the session is known to hold, and nothing else. A null fence
-- means the session variable.
CREATE FUNCTION wirefence.unhold(fence text, default_resource text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT wirefence.give_back(fence, default_resource) $$;

CREATE FUNCTION wirefence.hold(fence text DEFAULT NULL) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN wirefence.hold(fence, NULL::text, NULL::text);

-- before_hold says why a fence was not held, and does what makes it holdable: none, there is
-- no fence; once, each token is for one transaction, so the fence cannot be held; shadow,
-- every resource is in mode shadow, so nothing has to be held; checked, a check has recorded
-- the tokens, and the next hold may succeed. Instead of shadow it returns the refusal that
-- would have been raised. A null fence means the session variable.
CREATE FUNCTION wirefence.before_hold(fence text, default_resource text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    pairs record;
    shadowed boolean;
    used_once boolean;
    reason text;
BEGIN
    IF carried IS NULL THEN
        RETURN 'none';
    END IF;
    pairs := wirefence.parse_fence(carried, default_resource);
    SELECT bool_and(l.mode = 'shadow' IS TRUE), bool_or(l.reuse = 'once' IS TRUE) INTO shadowed, used_once
    FROM unnest(pairs.resources) AS u(resource) LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource;
    IF used_once AND NOT shadowed THEN
        RETURN 'once';
    END IF;
    reason := wirefence.check(fence, default_resource, false, false);
    RETURN CASE WHEN shadowed THEN coalesce(reason, 'shadow') ELSE 'checked' END;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.hold(text, text, text), wirefence.hold(text), wirefence.unhold(), wirefence.unhold(text, text),
    wirefence.hold_or_check(text, text, text, boolean), wirefence.before_hold(text, text) TO PUBLIC;

COMMENT ON FUNCTION wirefence.hold(text) IS 'Checks a fence for the session, by default the fence in wirefence.token. Takeovers wait until unhold() or the end of the session. Call it outside a transaction, in READ COMMITTED, and again at least every 200 ms, so that takeovers can proceed in between. It returns false if the fence cannot be held: each token is for one transaction, or a check has to record it first.';
COMMENT ON FUNCTION wirefence.unhold() IS 'Releases every hold of the session.';
