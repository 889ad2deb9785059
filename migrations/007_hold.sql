-- The hold: the same verdict as that of a check, valid for the session until the session gives
-- it back. pg_locks alone shows what a session holds; a setting would be rolled back.
--
-- Several proxies in a row may hold in one session. Each has a number, and takes with the lock
-- of a resource its own mark. Each releases only what its mark says that it holds. pg_locks
-- shows neither who took a lock nor how often, so a lock and its mark are taken and released in
-- one expression, during which no cancel can arrive.
SET LOCAL search_path = pg_catalog, pg_temp;

-- is_wanted reports whether a takeover of a resource is under way. Two sessions that ask at
-- the same moment may see each other.
CREATE FUNCTION wirefence.is_wanted(key bigint) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN NOT (pg_try_advisory_lock(wirefence.low(key), wirefence.high(key)) AND pg_advisory_unlock(wirefence.low(key), wirefence.high(key)));

-- wanted returns those of the keys for which a takeover is under way.
CREATE FUNCTION wirefence.wanted(keys bigint[]) RETURNS bigint[]
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT ARRAY(SELECT k.key FROM unnest(keys) AS k(key) WHERE wirefence.is_wanted(k.key)) $$;

-- try_hold takes a lock and its mark if neither has to be waited for. False: it has taken
-- none.
CREATE FUNCTION wirefence.try_hold(number integer, key bigint) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN pg_try_advisory_lock_shared(key)
   AND (pg_try_advisory_lock_shared(wirefence.high(key), wirefence.low(key) # number) OR NOT pg_advisory_unlock_shared(key));

-- release_hold releases a mark, and only with it the lock.
CREATE FUNCTION wirefence.release_hold(number integer, key bigint) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN pg_advisory_unlock_shared(wirefence.high(key), wirefence.low(key) # number) AND pg_advisory_unlock_shared(key);

-- release_found releases what pg_locks shows under a number. A mark that was taken twice
-- looks like one, so release_found looks again until it finds none.
CREATE FUNCTION wirefence.release_found(number integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
BEGIN
    WHILE (WITH own AS MATERIALIZED (
               SELECT l.classid, l.objid, l.objsubid FROM pg_locks AS l
               WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.mode = 'ShareLock' AND l.granted
           )
           SELECT bool_or(wirefence.release_hold(number, (k.classid::bigint << 32) | k.objid::bigint))
           FROM own AS k JOIN own AS m ON m.classid = k.classid AND m.objid::integer = k.objid::integer # number
           WHERE k.objsubid = 1 AND m.objsubid = 2) LOOP
    END LOOP;
END
$$;

-- hold_keys takes locks that the transaction has already, and their marks, for the session.
-- So it waits for nobody, even behind takeovers that wait, where a try would fail.
-- False: it holds none, because another session has the lock of a mark.
CREATE FUNCTION wirefence.hold_keys(number integer, keys bigint[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key bigint;
    held bigint[] := '{}';
BEGIN
    FOREACH key IN ARRAY keys LOOP
        IF pg_try_advisory_lock_shared(wirefence.high(key), wirefence.low(key) # number) AND pg_advisory_lock_shared(key) IS NOT NULL THEN
            held := held || key;
        ELSE
            PERFORM wirefence.release_hold(number, h.key) FROM unnest(held) AS h(key);
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
    PERFORM wirefence.release_found(number);
    RAISE;
END
$$;

-- holdable judges pairs for a hold. It raises a refusal, and otherwise returns: hold; record,
-- if a check has to record a token or its source first; once, if a token is for one
-- transaction; shadow, if every resource is in mode shadow; check, if some are.
CREATE FUNCTION wirefence.holdable(resources text[], tokens bigint[], sources text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pair record;
    shadowed integer := 0;
    used_once boolean := false;
    recorded boolean := true;
BEGIN
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(resources, tokens, sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY u.resource COLLATE "C"
    LOOP
        IF (pair.known).mode = 'shadow' THEN
            shadowed := shadowed + 1;
        ELSIF (pair.known).reuse = 'once' THEN
            used_once := true;
        ELSIF pair.verdict IN ('record', 'name') THEN
            recorded := false;
        ELSIF pair.verdict <> 'pass' THEN
            PERFORM wirefence.refuse(pair.verdict, pair.resource, pair.token, pair.source, pair.known);
        END IF;
    END LOOP;
    RETURN CASE WHEN shadowed = cardinality(resources) THEN 'shadow' WHEN used_once THEN 'once' WHEN shadowed > 0 THEN 'check'
        WHEN recorded THEN 'hold' ELSE 'record' END;
END
$$;

-- take_hold is hold_tokens for a session that holds nothing under the number, and for all but the
-- frequent case.
--
-- The check takes the locks for the transaction, waits for them, records tokens, and gives
-- the verdict; hold_keys adds the session's locks to those. A token that was recorded in the
-- client's transaction is not held, because that may be rolled back and the hold would stay.
-- A guard reads the session variable, so it could not judge another fence that is held. No
-- verdict of an old snapshot may outlive its transaction.
CREATE FUNCTION wirefence.hold_called(call text[]) RETURNS text
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := call[2];
    fence CONSTANT text := call[3];
    default_resource CONSTANT text := call[4];
    required CONSTANT boolean := call[5];
    manner CONSTANT text := call[6];
    variable CONSTANT text := wirefence.carried();
    committed CONSTANT boolean := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
    pairs record;
    keys bigint[];
    state text := 'apart';
    holds boolean := false;
    reason text;
BEGIN
    IF manner <> 'group' THEN
        PERFORM wirefence.suppress_counting(true);
        IF pg_is_in_recovery() OR NOT committed THEN
            RAISE EXCEPTION USING
                ERRCODE = 'WF006',
                MESSAGE = CASE WHEN committed THEN 'cannot hold a fence on a standby'
                    ELSE 'cannot hold a fence in isolation level ' || current_setting('transaction_isolation') END,
                DETAIL = 'The transaction may see an older state than that of the last takeover.',
                HINT = 'A fence is held on the primary, in READ COMMITTED.';
        END IF;
    ELSIF pg_is_in_recovery() AND strpos(coalesce(fence, variable, ''), '(') = 0 THEN
        RETURN 'checked';
    END IF;
    IF fence IS NULL AND variable IS NULL THEN
        PERFORM wirefence.check_all(NULL, NULL, manner = 'group' AND required, false, call[1]);
        RETURN 'none';
    ELSIF strpos(coalesce(fence, variable), '(') > 0 THEN
        PERFORM wirefence.suppress_counting(false);
        RETURN 'once';
    ELSIF committed THEN
        pairs := wirefence.parse_fence(coalesce(fence, variable), default_resource);
        keys := ARRAY(SELECT DISTINCT wirefence.lock_key(u.resource) FROM unnest(pairs.resources) AS u(resource));
        state := wirefence.holdable(pairs.resources, pairs.tokens, pairs.sources);
        holds := manner <> 'observe' AND (state = 'hold' OR state = 'record' AND manner <> 'group' AND current_setting('transaction_read_only') = 'off')
            AND NOT (fence IS DISTINCT FROM variable AND fence IS NOT NULL AND wirefence.any_guards())
            AND (manner = 'needed' OR wirefence.wanted(keys) = '{}');
    END IF;
    IF holds OR manner = 'group' OR state = 'shadow' THEN
        reason := CASE WHEN default_resource IS NOT NULL OR (wirefence.check_current(split_part(coalesce(fence, variable), '=', 1), coalesce(fence, variable))
                AND wirefence.note_tokens(coalesce(fence, variable))) IS NOT TRUE
            THEN wirefence.check_all(coalesce(fence, variable), default_resource, false, false, call[1]) END;
    END IF;
    PERFORM wirefence.suppress_counting(false);
    IF holds AND wirefence.hold_keys(number, keys) THEN
        RETURN concat('held ', wirefence.identity(), ' ', array_to_string(keys, ','));
    END IF;
    RETURN coalesce(reason, CASE WHEN state IN ('once', 'shadow', 'apart') THEN state ELSE 'checked' END);
END
$$;

CREATE AGGREGATE wirefence.take_hold(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.hold_called);

-- proxy_hold holds a fence for the session of a proxy, which has this number, or checks it
-- for the transaction. A null fence means the session variable. It returns
--
--   held SERVER KEY,KEY...  every pair is held, with these locks of the server of this
--                  identity
--   checked        it is not held; this transaction is checked, in manner group
--   once           a resource has reuse = once, or the fence names rows; likewise
--   apart          the transaction is not READ COMMITTED; likewise
--   shadow         every resource is in mode shadow; if one would have been refused, the
--                  refusal instead, as check returns it
--   none           there is no fence; if required, the transaction is READ ONLY from here on
--
-- held says what is held under this number: nothing; same, this fence; or null, whatever
-- pg_locks shows. It is released first, so that a takeover proceeds.
--
-- manner is group, in the transaction of the client, ahead of its statement; exchange, in a
-- READ COMMITTED transaction that the proxy commits at once, and in which nothing needs a
-- check; needed, the same for a statement that no check covers; or observe, the same for one
-- that the session can't hold for, to tell what its fence would get. While a takeover is
-- under way, needed waits behind it and the others hold nothing. Only group counts refusals:
-- in an exchange the proxy reports the statement that it refuses.
--
-- hold_tokens decides the frequent case, one current token of a plain name whose lock is free, as
-- check_current does it, and otherwise returns null: the row was read ahead of the lock, so it must be the newest one.
-- After an error the session may hold the fence, because the statement can be cancelled after
-- it has taken the lock.
CREATE FUNCTION wirefence.hold_tokens(number integer, fence text, default_resource text, held text, manner text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := coalesce(fence, wirefence.carried());
    answer text;
BEGIN
    IF held IN ('nothing', 'same') AND manner <> 'observe' AND default_resource IS NULL AND carried !~ '[,%(]'
       AND current_setting('transaction_isolation') = 'read committed' AND (fence IS NULL OR NOT wirefence.any_guards()) AND ((current_setting('wirefence.server', true) <> '') IS TRUE OR wirefence.know_server()) THEN
        SELECT CASE WHEN NOT ((held = 'nothing' OR wirefence.release_hold(number, k.key) IS NOT NULL) AND l.resource_id IS NOT NULL
                              AND (manner = 'needed' OR NOT wirefence.is_wanted(k.key)) AND wirefence.try_hold(number, k.key)) THEN NULL
                    WHEN currtid2('wirefence.resource_locks', l.ctid) = l.ctid AND wirefence.is_here(l.pinned_to) IS NOT FALSE
                    THEN concat('held ', coalesce(l.pinned_to, wirefence.identity()), ' ', k.key)
                    WHEN wirefence.release_hold(number, k.key) THEN NULL END INTO answer
        FROM (SELECT wirefence.lock_key(split_part(carried, '=', 1)) AS key) AS k
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried);
    ELSIF held = 'same' THEN
        PERFORM wirefence.release_hold(number, k.key)
        FROM (SELECT DISTINCT wirefence.lock_key(u.resource) AS key
              FROM unnest((wirefence.read_fence(carried, default_resource)).resources) AS u(resource)) AS k;
    ELSIF held IS DISTINCT FROM 'nothing' THEN
        PERFORM wirefence.release_found(number);
    END IF;
    RETURN answer;
END
$$;

-- proxy_unhold releases these locks that are held under a number; null releases whatever
-- pg_locks shows. With the keys it does not read pg_locks, which briefly locks the whole lock
-- table: a busy proxy would block every session by that.
CREATE FUNCTION wirefence.proxy_unhold(number integer, keys bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
BEGIN
    IF keys IS NULL THEN
        PERFORM wirefence.release_found(number);
    END IF;
    PERFORM wirefence.release_hold(number, k.key) FROM unnest(keys) AS k(key);
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.hold_tokens(integer, text, text, text, text), wirefence.take_hold(text[]), wirefence.proxy_unhold(integer, bigint[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION wirefence.wanted(bigint[]) TO wirefence_issuer;
