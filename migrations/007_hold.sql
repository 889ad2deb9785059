-- The hold: the same verdict as a check's, valid for the session until it is given back.
-- What a session holds is in pg_locks and nowhere else, since a setting would roll back.
SET LOCAL search_path = pg_catalog, pg_temp;

-- unhold gives back what wirefence.hold has taken for this session, and no lock of
-- the application's own. Where there is nothing it does nothing.
CREATE FUNCTION wirefence.unhold() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_unlock_shared(h.key), pg_advisory_unlock_shared((h.key >> 32)::integer, (h.key & 4294967295)::bit(32)::integer)
    FROM wirefence.own_holds AS h;
END
$$;

-- unhold_marks gives back what a hold that failed on its way has left beside that: the
-- second locks of keys of which it didn't get the first.
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

-- may_hold judges pairs for a hold: it raises a refusal, and is false where a check
-- would have to write, or where the verdict is one transaction's.
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

-- hold_all takes the lock of every pair for the session, in the order of the keys, and
-- reads the verdict behind that: all or nothing. What it has taken is given back
-- whatever happens, by a cancel too.
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
            EXIT WHEN NOT held; -- for somebody else's lock, which nothing waits for
            IF NOT pg_try_advisory_lock_shared(key) THEN
                PERFORM wirefence.await_shared((SELECT u.resource FROM unnest(resources) AS u(resource) WHERE wirefence.lock_key(u.resource) = key LIMIT 1), 'session');
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

-- hold_now is hold, by the same names, for a session that holds nothing.
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
            MESSAGE = 'a fence can''t be held here',
            DETAIL = CASE WHEN pg_is_in_recovery() THEN 'A standby lags behind: it can''t tell whether a token is current.'
                ELSE 'The transaction reads by a snapshot, which may be older than a takeover.' END,
            HINT = CASE WHEN pg_is_in_recovery() THEN 'Connect to the primary.'
                ELSE 'Use READ COMMITTED for the transaction that calls wirefence.hold.' END;
    ELSIF fence IS NULL AND variable IS NULL THEN
        RETURN false;
    END IF;
    pairs := wirefence.parsed(coalesce(fence, variable), default_resource);
    IF NOT wirefence.may_hold(pairs.resources, pairs.tokens, pairs.sources) -- which refuses without a wait what is stale already
       OR fence IS NOT NULL AND fence IS DISTINCT FROM variable AND wirefence.any_guards()
          AND EXISTS (SELECT FROM unnest(pairs.resources) AS u(resource) WHERE wirefence.guards_ask_for(u.resource)) THEN
        RETURN false;
    END IF;
    RETURN wirefence.hold_all(pairs.resources, pairs.tokens, pairs.sources);
END
$$;

-- give_back gives back the locks of one fence that the session is known to hold. It
-- doesn't look into pg_locks, which takes every lock of the lock table for a moment: a
-- busy proxy would stand in everybody's way.
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
          FROM unnest((wirefence.parsed(carried, default_resource)).resources) AS u(resource)) AS k;
END
$$;

-- hold_or_check goes ahead of a statement: it holds the fence for the session, or where it
-- can't be held checks it for the transaction. It returns held, or what check returns; apart
-- instead of null where the transaction isn't READ COMMITTED: a hold must be asked for in one
-- that is. With required null it checks nothing, and a refusal isn't counted.
--
-- The frequent case, one current token of a plain name whose lock is free, is decided
-- here.
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
        IF held = 'same' THEN -- by an assignment, which is cheaper than a query
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
        PERFORM wirefence.observing(true);
        taken := wirefence.hold_now(fence, default_resource);
        PERFORM wirefence.observing(false);
        RETURN CASE WHEN taken THEN 'held' END;
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RETURN coalesce(wirefence.check(fence, default_resource, required, false), 'apart');
    ELSIF NOT pg_is_in_recovery() AND wirefence.hold_now(fence, default_resource) THEN
        RETURN 'held';
    END IF;
    RETURN wirefence.check(fence, default_resource, required, false);
END
$$;

-- hold tests every pair of a fence for the session, until unhold or the next hold. While
-- it is held, no token of these resources is superseded. It gives back
-- what the session holds and asks anew, so a waiting takeover gets in between. A null
-- fence is the session variable's.
--
-- True: every pair is held. False: nothing is, because there is no fence, or the fence
-- needs a check in each transaction: to write what it accepts, for a resource with
-- reuse = once or mode = shadow, or so that a guard can see a fence that isn't the session
-- variable's. A refusal is raised as by a check, and then nothing is held either. It
-- isn't counted: the proxy tells of the statement that it refuses for it.
--
-- held says what the session is known to hold already: nothing, the same fence, or by
-- default whatever pg_locks says.
--
-- The verdict outlives the transaction, so it must not be read in an older snapshot.
CREATE FUNCTION wirefence.hold(fence text, default_resource text, held text DEFAULT NULL) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN wirefence.hold_or_check(fence, default_resource, held, NULL) IS NOT NULL;

-- unhold gives back a fence that the session is known to hold, and nothing else. A null
-- fence is the session variable's.
CREATE FUNCTION wirefence.unhold(fence text, default_resource text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT wirefence.give_back(fence, default_resource) $$;

CREATE FUNCTION wirefence.hold(fence text DEFAULT NULL) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN wirefence.hold(fence, NULL::text, NULL::text);

-- before_hold says why a fence wasn't held, and does what there is to do about it: none,
-- there is no fence; once,
-- it can't be, as each token is one transaction's; shadow, every resource is in mode
-- shadow, so nothing has to be held; checked, a check has recorded the tokens, and the
-- next hold may have them. Instead of shadow it returns what would have been refused. A
-- null fence is the session variable's.
CREATE FUNCTION wirefence.before_hold(fence text, default_resource text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := coalesce(fence, nullif(current_setting('wirefence.token', true), ''));
    pairs record;
    shadowed boolean;
    single boolean;
    reason text;
BEGIN
    IF carried IS NULL THEN
        RETURN 'none';
    END IF;
    pairs := wirefence.parsed(carried, default_resource);
    SELECT bool_and(l.mode = 'shadow' IS TRUE), bool_or(l.reuse = 'once' IS TRUE) INTO shadowed, single
    FROM unnest(pairs.resources) AS u(resource) LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource;
    IF single AND NOT shadowed THEN
        RETURN 'once';
    END IF;
    reason := wirefence.check(fence, default_resource, false, false);
    RETURN CASE WHEN shadowed THEN coalesce(reason, 'shadow') ELSE 'checked' END;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.hold(text, text, text), wirefence.hold(text), wirefence.unhold(), wirefence.unhold(text, text),
    wirefence.hold_or_check(text, text, text, boolean), wirefence.before_hold(text, text) TO PUBLIC;

COMMENT ON FUNCTION wirefence.hold(text) IS 'Checks a fence for the session, by default that in wirefence.token, and keeps takeovers waiting until unhold() or the end of the session. Call it outside a transaction, in READ COMMITTED, and at least every 200 ms anew, so that takeovers get in between. It returns false where the fence cannot be held: each token is for one transaction, or a check has to record it first.';
COMMENT ON FUNCTION wirefence.unhold() IS 'Gives back every hold of the session.';
