-- The check of a fence inside the client's transaction. The tokens of two lock services cannot
-- be compared, so a resource records the source of its tokens, and a token that names another
-- source is refused, whatever its number.
SET LOCAL search_path = pg_catalog, pg_temp;

-- must_be_declared reports whether tokens of unknown resources are refused.
CREATE FUNCTION wirefence.must_be_declared() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT s.undeclared = 'refuse' FROM wirefence.settings AS s $$;

-- verdict judges a token by a row of resource_locks; for an unknown resource all columns of
-- the row are null. It returns pass; record: the token is accepted once the row has it; name:
-- the token is accepted and is the first to name a source, which the row should get; or the
-- SQLSTATE of the refusal. Where only a seal advances the resource, only a seal names the
-- source. Tokens from 2^62 on are for seals alone, so a client cannot use up the tokens of a
-- resource before its first seal. A token that was sealed before a promotion or a restore is
-- refused. Where each node of Citus has the tokens, a client's use of one would advance only its
-- own node, so only seals advance.
CREATE FUNCTION wirefence.verdict(token bigint, source text, known wirefence.resource_locks) RETURNS text
LANGUAGE sql
RETURN CASE
    WHEN (known).resource_id IS NULL OR wirefence.is_forgotten(known) THEN CASE WHEN wirefence.must_be_declared() THEN 'WF008'
                                                  WHEN token >= 4611686018427387904 OR token <= wirefence.forgotten_floor() OR wirefence.citus_group() IS NOT NULL THEN 'WF003'
                                                  WHEN wirefence.row_may_be_lost() THEN 'WF001' ELSE 'record' END
    WHEN wirefence.is_foreign(source, known) THEN 'WF003'
    WHEN token < (known).last_token OR (known).pinned_to <> wirefence.identity() THEN 'WF001'
    WHEN token > (known).last_token AND ((known).advance = 'grant' OR token >= 4611686018427387904 OR wirefence.citus_group() IS NOT NULL) THEN 'WF003'
    WHEN token > (known).last_token THEN 'record'
    WHEN (known).reuse = 'once' AND (known).used_token IS DISTINCT FROM token THEN 'record'
    WHEN (known).reuse = 'once' AND (known).used_xid IS DISTINCT FROM pg_current_xact_id_if_assigned() THEN 'WF005'
    WHEN source IS NOT NULL AND (known).source IS NULL AND (known).advance = 'use' AND wirefence.citus_group() IS NULL THEN 'name'
    ELSE 'pass'
END;

-- describe_last_grant returns a clause for DETAIL: the holder of the current token, and when
-- it was granted. Only for leases in PostgreSQL is it known here whether the holder still
-- holds the lease, and not in an old snapshot.
CREATE FUNCTION wirefence.describe_last_grant(known wirefence.resource_locks) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder CONSTANT text := wirefence.quote_name(known.holder);
    granted CONSTANT text := to_char(known.granted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00';
BEGIN
    IF known.source IS DISTINCT FROM 'postgres' OR current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN coalesce(', granted to ' || holder || coalesce(' at ' || granted, ''), '');
    ELSIF EXISTS (SELECT FROM wirefence.leases AS l WHERE l.resource_id = known.resource_id AND l.expires_at > clock_timestamp()) THEN
        RETURN coalesce(', held by ' || holder || coalesce(' since ' || granted, ''), '');
    END IF;
    RETURN coalesce(', last held by ' || holder || coalesce(', granted at ' || granted, ''), '');
END
$$;

-- refusal_of returns the texts of a verdict of class WF. Programs parse the first sentence of
-- DETAIL, so its form must not change.
CREATE FUNCTION wirefence.refusal_of(state text, resource text, token bigint, source text, known wirefence.resource_locks,
    OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := wirefence.quote_name(resource);
    reason text := CASE WHEN state = 'WF003' AND wirefence.is_foreign(source, known) THEN 'foreign'
        WHEN state = 'WF003' AND (known.resource_id IS NULL OR wirefence.is_forgotten(known)) AND token <= wirefence.forgotten_floor() THEN 'forgotten'
        WHEN state = 'WF001' AND (known.resource_id IS NULL OR known.pinned_to <> wirefence.identity()) THEN 'former'
        ELSE state END;
BEGIN
    message := CASE state
        WHEN 'WF001' THEN 'stale fencing token for resource '
        WHEN 'WF003' THEN 'unknown fencing token for resource '
        WHEN 'WF008' THEN 'unknown fenced resource '
        ELSE 'fencing token already used for resource ' END || coalesce(name, 'null')
        || CASE WHEN reason <> 'foreign' THEN '' ELSE
           coalesce(': it comes from ' || wirefence.quote_name(source) || ', not from ', ': it does not say that it comes from ')
           || wirefence.quote_name(known.source) END;
    detail := CASE state WHEN 'WF008' THEN 'No token of it was ever recorded, and it was not declared.' ELSE
        'Resource ' || name || ': presented token ' || token || ', current token ' || CASE WHEN wirefence.is_forgotten(known) THEN 'none' ELSE coalesce(known.last_token::text, 'none') END
        || wirefence.describe_last_grant(known) || '.'
        || CASE reason WHEN 'foreign' THEN ' Tokens of different sources cannot be compared.'
           WHEN 'forgotten' THEN ' Resources with tokens up to ' || wirefence.forgotten_floor() || ' were forgotten, so an unknown resource accepts no token up to that.'
           WHEN 'former' THEN ' The database was promoted or restored since: it accepts no token that was granted before.' ELSE '' END END;
    hint := CASE reason
        WHEN 'WF001' THEN 'A later holder has taken over. Stop this work: a retry with the same token can never succeed.'
        WHEN 'former' THEN 'Acquire the lock again and use the new token. If the storage keeps every commit across a failover, or another service counts the tokens, run wirefence resource set NAME --failover trust --reason WHY.'
        WHEN 'forgotten' THEN 'Acquire the lock again and use the new token. If another service counts the tokens, and counts lower, declare the resource: wirefence resource declare NAME --advance use --reason WHY.'
        WHEN 'WF003' THEN 'Acquire the lock and use its token. This resource accepts only tokens that were granted and sealed.'
        WHEN 'WF008' THEN CASE WHEN wirefence.must_be_declared()
            THEN 'Check the name. If it is right, declare the resource: wirefence resource declare NAME --reason WHY.'
            ELSE 'SELECT * FROM wirefence.status() lists the resources.' END
        WHEN 'foreign' THEN CASE WHEN source IS NULL
            THEN 'Name the source after the token: resource=token@' || known.source || '.'
            ELSE 'All clients that compete for a resource must use one lock service. To change to this one, run wirefence resource set NAME --source '
                 || source || ' --reason WHY.' END
        ELSE 'Acquire the lock again: each token of this resource is valid for one transaction.' END;
END
$$;

-- refuse raises a verdict of class WF, and counts it unless that is suppressed.
CREATE FUNCTION wirefence.refuse(state text, resource text, token bigint, source text, known wirefence.resource_locks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r CONSTANT record := wirefence.refusal_of(state, resource, token, source, known);
    counted CONSTANT text := CASE state WHEN 'WF008' THEN wirefence.count_refusal() ELSE wirefence.count_refusal(state, resource, token) END;
BEGIN
    RAISE EXCEPTION USING SCHEMA = counted, ERRCODE = state, MESSAGE = r.message, DETAIL = r.detail, HINT = r.hint;
END
$$;

-- refuse_unknown raises WF008, uncounted.
CREATE FUNCTION wirefence.refuse_unknown(resource text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ SELECT wirefence.suppress_counting(true), wirefence.refuse('WF008', resource, NULL, NULL, NULL) $$;

-- record_token writes an accepted token into the row, with the source that it is the first to
-- name. The caller holds the lock exclusively, so only an operator can have raised the row
-- meanwhile.
CREATE FUNCTION wirefence.record_token(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, source, granted_at, failover)
    VALUES (resource, token, record_token.source, clock_timestamp(), (SELECT s.failover FROM wirefence.settings AS s))
    ON CONFLICT (resource_id) DO UPDATE SET
        last_token = excluded.last_token,
        source = CASE l.advance WHEN 'use' THEN coalesce(l.source, excluded.source) ELSE l.source END,
        holder = CASE WHEN l.last_token = excluded.last_token THEN l.holder END,
        granted_at = CASE WHEN l.last_token = excluded.last_token THEN l.granted_at ELSE excluded.granted_at END,
        used_token = CASE l.reuse WHEN 'once' THEN excluded.last_token END,
        used_xid = CASE l.reuse WHEN 'once' THEN pg_current_xact_id() END,
        updated_at = clock_timestamp()
    WHERE l.last_token <= excluded.last_token AND NOT wirefence.is_foreign(excluded.source, l);
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'could not serialize access to a fenced resource';
    END IF;
END
$$;

-- name_source writes the source that a current token is the first to name, if no other writer
-- of the resource is active. Other writers carry the same token, and none of them needs to
-- wait. The caller holds the lock in shared mode and does not wait for the exclusive lock.
CREATE FUNCTION wirefence.name_source(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        PERFORM wirefence.announce(resource, token);
        PERFORM wirefence.record_token(resource, token, source);
    END IF;
END
$$;

-- refuse_stale raises the verdicts that need no lock. A superseded token stays superseded,
-- also in an old snapshot. The other verdicts are final only where each statement has a new
-- snapshot.
CREATE FUNCTION wirefence.refuse_stale(resources text[], tokens bigint[], sources text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present boolean := current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable');
    pair record;
BEGIN
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(resources, tokens, sources) AS u(resource, token, source)
        JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY l.resource_id
    LOOP
        IF pair.verdict = 'WF001' OR present AND pair.verdict LIKE 'WF%' THEN
            PERFORM wirefence.refuse(pair.verdict, pair.resource, pair.token, pair.source, pair.known);
        END IF;
    END LOOP;
END
$$;

-- take_locks takes the lock of every pair in the order of the keys; where two names share a
-- key, the exclusive lock comes first. It chooses the mode by the row, read without a lock:
-- if two first writers upgraded from shared to exclusive, they would deadlock. It returns the
-- names that it locked exclusively, or null if a token was superseded during a wait.
CREATE FUNCTION wirefence.take_locks(resources text[], tokens bigint[], sources text[], caller text) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writable boolean := current_setting('transaction_read_only') = 'off';
    owned text[] := '{}';
    pair record;
BEGIN
    FOR pair IN
        SELECT u.resource, u.token, u.source, wirefence.lock_key(u.resource) AS key,
               CASE WHEN l.resource_id IS NULL THEN interval '5 s' ELSE l.preempt_after END AS preempt_after,
               writable AND wirefence.verdict(u.token, u.source, l) = 'record' AS exclusive
        FROM unnest(resources, tokens, sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY key, exclusive DESC, u.resource
    LOOP
        IF NOT pair.exclusive THEN
            IF NOT pg_try_advisory_xact_lock_shared(pair.key) THEN
                PERFORM wirefence.wait_for_shared_lock(pair.resource);
            END IF;
        ELSIF NOT wirefence.lock_exclusive(pair.resource, pair.token, pair.source, pair.preempt_after, caller) THEN
            RETURN NULL;
        ELSE
            owned := owned || pair.resource;
        END IF;
    END LOOP;
    RETURN owned;
END
$$;

-- require_newest raises 40001 unless the row that a transaction sees is the newest one. Under
-- the lock of a resource no takeover commits, so the row stays the newest. currtid2 follows
-- the updates of a row in a new snapshot; those that were rolled back do not count. A row is
-- deleted only once every snapshot shows it as forgotten: see 016_forget.sql. A resource that has
-- no row in the snapshot, or a forgotten one, may have got one since.
CREATE FUNCTION wirefence.require_newest(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM wirefence.resource_locks AS l
                   WHERE l.resource_id = resource AND currtid2('wirefence.resource_locks', l.ctid) = l.ctid AND NOT wirefence.is_forgotten(l)) THEN
        RAISE serialization_failure USING
            MESSAGE = 'could not serialize access to a fenced resource',
            DETAIL = 'The snapshot of this READ ONLY transaction is older than the last token of resource ' || wirefence.quote_name(resource)
                || ', or the resource has none.',
            HINT = 'Retry the transaction. The first token of a resource must be checked in a READ WRITE transaction.';
    END IF;
END
$$;

-- judge gives the verdict on each pair under its lock, all or nothing. In REPEATABLE READ and
-- SERIALIZABLE it reads the row FOR SHARE, which raises 40001 if the snapshot is out of date.
-- A READ ONLY transaction can lock no row, so there require_newest does that. It advances
-- nothing.
CREATE FUNCTION wirefence.judge(resources text[], tokens bigint[], sources text[], caller text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writable boolean := current_setting('transaction_read_only') = 'off';
    snapshot boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    known wirefence.resource_locks;
    owned text[];
    verdict text;
BEGIN
    WHILE owned IS NULL LOOP
        PERFORM wirefence.refuse_stale(resources, tokens, sources);
        owned := wirefence.take_locks(resources, tokens, sources, caller);
    END LOOP;
    FOR i IN 1 .. cardinality(resources) LOOP
        IF writable AND snapshot THEN
            SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resources[i] FOR SHARE;
        ELSE
            IF snapshot THEN
                PERFORM wirefence.require_newest(resources[i]);
            END IF;
            SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resources[i];
        END IF;
        verdict := wirefence.verdict(tokens[i], sources[i], known);
        IF verdict LIKE 'WF%' THEN
            PERFORM wirefence.refuse(verdict, resources[i], tokens[i], sources[i], known);
        ELSIF verdict = 'record' AND writable THEN
            IF resources[i] <> ALL (owned) THEN
                RAISE serialization_failure USING MESSAGE = 'could not serialize access to a fenced resource';
            END IF;
            PERFORM wirefence.record_token(resources[i], tokens[i], sources[i]);
        ELSIF verdict = 'name' AND writable THEN
            PERFORM wirefence.name_source(resources[i], tokens[i], sources[i]);
        END IF;
    END LOOP;
END
$$;

-- record_without_waiting records a token if it need not wait for that, and if its own session
-- does not hold an older one; otherwise a later transaction records it.
CREATE FUNCTION wirefence.record_without_waiting(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms'
AS $$
DECLARE
    known wirefence.resource_locks;
BEGIN
    PERFORM wirefence.refuse_own_hold(resource);
    IF pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
        IF wirefence.verdict(token, source, known) IN ('record', 'name') THEN
            PERFORM wirefence.announce(resource, token);
            PERFORM wirefence.record_token(resource, token, source);
        END IF;
    END IF;
EXCEPTION WHEN OTHERS THEN
    NULL;
END
$$;

-- judge_in_shadow judges pairs for a proxy, a resource or a guard in shadow mode. It raises
-- nothing, terminates nobody and waits for nobody. It returns the first refusal as text and,
-- with recording_history, records all refusals in the history. It takes a lock only to record
-- a higher token; without that, no later token would be found superseded. It may see an older
-- state than a check that enforces.
CREATE FUNCTION wirefence.judge_in_shadow(resources text[], tokens bigint[], sources text[], recording_history boolean, relation text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    recording CONSTANT boolean := current_setting('transaction_read_only') = 'off'
        AND current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable');
    pair record;
    first_refusal text;
BEGIN
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(resources, tokens, sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY u.resource COLLATE "C"
    LOOP
        IF pair.verdict LIKE 'WF%' THEN
            first_refusal := coalesce(first_refusal, (
                SELECT concat(pair.verdict, ': ', r.message, '. ', r.detail)
                FROM wirefence.refusal_of(pair.verdict, pair.resource, pair.token, pair.source, pair.known) AS r));
            IF recording_history THEN
                PERFORM wirefence.note('shadow', pair.verdict, pair.resource, pair.token, (pair.known).last_token, pair.source, (pair.known).holder, relation);
            END IF;
        ELSIF pair.verdict IN ('record', 'name') AND recording THEN
            PERFORM wirefence.record_without_waiting(pair.resource, pair.token, pair.source);
        END IF;
    END LOOP;
    RETURN first_refusal;
END
$$;

-- read_fence is parse_fence for a fence that may name rows as well, which it leaves out.
CREATE FUNCTION wirefence.read_fence(fence text, default_resource text, OUT resources text[], OUT tokens bigint[], OUT sources text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF strpos(fence, '(') > 0 THEN
        fence := (SELECT string_agg(i.item, ',') FROM string_to_table(fence, ',') AS i(item) WHERE strpos(i.item, '(') = 0);
    END IF;
    IF fence IS NOT NULL THEN
        SELECT p.resources, p.tokens, p.sources INTO resources, tokens, sources FROM wirefence.parse_fence(fence, default_resource) AS p;
    END IF;
END
$$;

-- check_all checks every token of a fence for a caller; null is no fence. It has no block with
-- EXCEPTION, because the end of such a block would make the
-- transaction READ WRITE again. On a standby it does nothing.
CREATE FUNCTION wirefence.check_all(carried text, default_resource text, required boolean, shadow boolean, caller text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pairs record;
    shadowed record;
    enforced record;
    reason text;
BEGIN
    IF carried IS NULL OR pg_is_in_recovery() THEN
        IF required IS NOT TRUE OR pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
            RETURN CASE WHEN carried IS NULL THEN 'none' END;
        ELSIF shadow IS NOT TRUE THEN
            PERFORM set_config('transaction_read_only', 'on', true);
        END IF;
        RETURN 'unfenced';
    END IF;
    pairs := wirefence.read_fence(carried, default_resource);
    IF pairs.resources IS NULL THEN
        NULL;
    ELSIF shadow THEN
        RETURN wirefence.judge_in_shadow(pairs.resources, pairs.tokens, pairs.sources, false);
    ELSIF NOT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = ANY (pairs.resources) AND l.mode = 'shadow') THEN
        PERFORM wirefence.judge(pairs.resources, pairs.tokens, pairs.sources, caller);
    ELSE
        SELECT array_agg(u.resource) FILTER (WHERE l.mode = 'shadow') AS resources, array_agg(u.token) FILTER (WHERE l.mode = 'shadow') AS tokens,
               array_agg(u.source) FILTER (WHERE l.mode = 'shadow') AS sources
        INTO shadowed
        FROM unnest(pairs.resources, pairs.tokens, pairs.sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource;
        SELECT array_agg(u.resource ORDER BY u.place) AS resources, array_agg(u.token ORDER BY u.place) AS tokens,
               array_agg(u.source ORDER BY u.place) AS sources
        INTO enforced
        FROM unnest(pairs.resources, pairs.tokens, pairs.sources) WITH ORDINALITY AS u(resource, token, source, place)
        WHERE u.resource <> ALL (coalesce(shadowed.resources, '{}'));
        IF enforced.resources IS NOT NULL THEN
            PERFORM wirefence.judge(enforced.resources, enforced.tokens, enforced.sources, caller);
        END IF;
        reason := wirefence.judge_in_shadow(shadowed.resources, shadowed.tokens, shadowed.sources, true);
    END IF;
    IF pairs.resources IS NOT NULL THEN -- as it was written, if that is how entries are spelled
        PERFORM wirefence.note_tokens(CASE WHEN carried ~ '^[^,=%(]+=[^,=%(]+(,[^,=%(]+=[^,=%(]+)*$' THEN carried ELSE (
            SELECT string_agg(ltrim(wirefence.entry(u.resource), ',') || u.token, ',') FROM unnest(pairs.resources, pairs.tokens) AS u(resource, token)) END);
    END IF;
    RETURN reason;
END
$$;

-- check_current decides the frequent case: carried is one current token of a resource with a plain
-- name, whose lock is free. Otherwise it is not true, and another function decides, by the same
-- rules. Its caller notes the check. PL/pgSQL prepares each statement and expression anew in every transaction, each function
-- in them costs as much as it does, and a search_path as much as a statement. So this function has
-- one statement, with few functions, and qualifies every name, those of operators too.
--
-- It takes the lock only once it has found the token current, since no transaction may upgrade
-- from shared to exclusive. The row that it has found may be older than the lock, in every
-- isolation level. So it must be the newest one: currtid2 follows the updates of a row in a new
-- snapshot, and under the lock none commits.
CREATE FUNCTION wirefence.check_current(resource text, carried text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    passed pg_catalog.bool;
BEGIN
    IF (pg_catalog.current_setting('wirefence.server', true) OPERATOR(pg_catalog.<>) '') IS NOT TRUE AND NOT wirefence.know_server() THEN
        RETURN false;
    END IF;
    SELECT pg_catalog.pg_try_advisory_xact_lock_shared(wirefence.lock_key(l.resource_id))
           AND pg_catalog.currtid2('wirefence.resource_locks', l.ctid) OPERATOR(pg_catalog.=) l.ctid INTO passed
    FROM wirefence.resource_locks AS l
    WHERE l.resource_id OPERATOR(pg_catalog.=) resource AND (l.fence OPERATOR(pg_catalog.=) carried OR l.sourced_fence OPERATOR(pg_catalog.=) carried)
      AND wirefence.is_here(l.pinned_to) IS NOT FALSE;
    RETURN passed;
END
$$;

-- check_several is check_current for the pairs of a fence, each of which is the current token of a
-- resource with a plain name. It takes the locks in the order of their keys and waits for none; and
-- none at all where a pair has to be recorded first.
CREATE FUNCTION wirefence.check_several(carried text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pairs CONSTANT text[] := string_to_array(carried, ',');
    missing integer := cardinality(pairs);
    found record;
BEGIN
    IF missing > 32 OR (current_setting('wirefence.server', true) <> '') IS NOT TRUE AND NOT wirefence.know_server() THEN
        RETURN false;
    END IF;
    FOR found IN
        SELECT wirefence.lock_key(l.resource_id) AS key, l.ctid AS row, wirefence.is_here(l.pinned_to) IS NOT FALSE AND count(*) OVER () = missing AS fits
        FROM wirefence.resource_locks AS l
        WHERE l.resource_id = ANY (ARRAY(SELECT split_part(u.pair, '=', 1) FROM unnest(pairs) AS u(pair)))
          AND (l.fence = ANY (pairs) OR l.sourced_fence = ANY (pairs))
        ORDER BY 1
    LOOP
        EXIT WHEN NOT (found.fits AND pg_try_advisory_xact_lock_shared(found.key) AND currtid2('wirefence.resource_locks', found.row) = found.row);
        missing := missing - 1;
    END LOOP;
    RETURN missing = 0 AND wirefence.note_tokens(carried);
END
$$;

-- A SECURITY DEFINER function can't learn with whose rights it was called: session_user is the
-- login, in whose session the code of others may run with their own rights, as that of a table's
-- owner does behind a cascade or in ANALYZE. An aggregate can. Its caller needs no right to call its
-- parts, only its owner does. So the first part, called_by, runs with the rights of the caller, who
-- can't call or replace it, and puts the role ahead of the arguments. A slice of these has subscripts
-- from 1 on, whatever the caller gave them. The second part is SECURITY DEFINER, and nothing else calls
-- it.
CREATE FUNCTION wirefence.called_by(state text[], VARIADIC arguments text[]) RETURNS text[]
LANGUAGE sql STABLE
RETURN array_prepend(current_user::text, arguments[:]);

-- check_tokens is check_pairs for a fence without rows.
CREATE FUNCTION wirefence.check_called(call text[]) RETURNS text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
RETURN wirefence.check_all(coalesce(call[2], wirefence.carried()), call[3], call[4]::boolean, call[5]::boolean, call[1]);

CREATE AGGREGATE wirefence.check_tokens(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.check_called);

-- check_pairs is check for all but the frequent case. A bare token belongs to default_resource.
CREATE FUNCTION wirefence.check_pairs(fence text, default_resource text, required boolean, shadow boolean) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    carried CONSTANT pg_catalog.text := coalesce(fence, wirefence.carried());
BEGIN
    IF shadow THEN
        RETURN wirefence.check_in_shadow(fence, default_resource, required);
    ELSIF pg_catalog.strpos(carried, '(') OPERATOR(pg_catalog.>) 0 THEN
        RETURN wirefence.check_rows(fence, default_resource, required);
    ELSIF pg_catalog.strpos(carried, ',') OPERATOR(pg_catalog.>) 0 AND wirefence.check_several(carried) THEN
        RETURN NULL;
    ELSIF default_resource IS NOT NULL
          AND wirefence.check_current(default_resource, pg_catalog.concat(default_resource, '=', carried))
          AND wirefence.note_tokens(pg_catalog.concat(default_resource, '=', carried)) THEN
        RETURN NULL;
    ELSIF fence IS NULL AND wirefence.carries_name() AND wirefence.check_current(pg_catalog.split_part(carried, '=', 1), carried)
          AND wirefence.note_tokens(carried) THEN
        RETURN NULL;
    END IF;
    RETURN wirefence.check_tokens(fence, default_resource, required::pg_catalog.text, 'false');
END
$$;

-- check returns null; none if there is no fence, as if the variable is empty; or unfenced if one is
-- required: then the transaction is READ ONLY from here on, which it was not before. With shadow, and
-- for resources and classes in mode shadow, it returns the refusal that it would have raised, and
-- changes nothing. A standby lags behind its primary and cannot judge tokens: there check judges rows
-- alone. Tokens are checked with the rights of wirefence_owner, rows with those of the caller.
CREATE FUNCTION wirefence.check(fence text, default_resource text, required boolean, shadow boolean) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    carried CONSTANT pg_catalog.text := coalesce(fence, pg_catalog.current_setting('wirefence.token', true));
BEGIN
    IF shadow IS NOT TRUE AND default_resource IS NULL AND pg_catalog.strpos(carried, '(') OPERATOR(pg_catalog.=) 0
       AND wirefence.check_current(pg_catalog.split_part(carried, '=', 1), carried) AND wirefence.note_tokens(carried) THEN
        RETURN NULL;
    END IF;
    RETURN wirefence.check_pairs(fence, default_resource, required, shadow);
END
$$;

CREATE FUNCTION wirefence.check(fence text DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE
RETURN wirefence.check(fence, NULL::text, false, false);

GRANT EXECUTE ON FUNCTION wirefence.check(text, text, boolean, boolean), wirefence.check(text), wirefence.check_current(text, text), wirefence.check_several(text), wirefence.check_tokens(text[]),
    wirefence.check_pairs(text, text, boolean, boolean), wirefence.note_tokens(text), wirefence.note_checked(text), wirefence.any_guards() TO PUBLIC;

COMMENT ON FUNCTION wirefence.check(text) IS 'Checks every pair of a fence for this transaction, by default of the session''s fence, in wirefence.token or application_name. Takeovers of its resources wait until the transaction ends. It raises WF001 to WF008. Without a fence it does nothing. After a savepoint the check is valid until ROLLBACK TO.';
