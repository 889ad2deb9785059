-- Where tokens come from. Numbers that two lock services count don't compare, so
-- a resource remembers whose its tokens are, and a token that names another
-- source is refused, whatever its number. A fence may name the source behind the
-- token: resource=token@source. The functions call each other, so that all of
-- them are replaced in this one file.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The texts of the current fence, without its source and with it, are kept for the
-- frequent check. A transaction with a snapshot from before this table was
-- rewritten sees it empty: it is told to try again, by 40001, before it writes.
ALTER TABLE wirefence.resource_locks
    ADD COLUMN source text COLLATE "C" CHECK (source ~ '^[a-z][a-z0-9_.-]{0,31}$'),
    ADD COLUMN must_name_source boolean NOT NULL DEFAULT false,
    ADD CHECK (source IS NOT NULL OR NOT must_name_source),
    DROP COLUMN fence,
    ADD COLUMN fence text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN reuse = 'allow' AND NOT must_name_source AND resource_id !~ '[^A-Za-z0-9_.:/-]'
             THEN resource_id || '=' || last_token::text END) STORED,
    ADD COLUMN sourced_fence text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN reuse = 'allow' AND resource_id !~ '[^A-Za-z0-9_.:/-]'
             THEN resource_id || '=' || last_token::text || '@' || source END) STORED;

COMMENT ON COLUMN wirefence.resource_locks.source IS 'Which lock service counts the tokens; null as long as none was named.';
COMMENT ON COLUMN wirefence.resource_locks.must_name_source IS 'Whether a token that names no source is refused.';
COMMENT ON COLUMN wirefence.resource_locks.fence IS 'The fence with the current token, where it is accepted as it stands; null under reuse = once, under must_name_source, and for names that are percent-encoded.';
COMMENT ON COLUMN wirefence.resource_locks.sourced_fence IS 'The same with the source behind the token.';

-- What follows takes the place of functions of 002 to 005.
DROP FUNCTION wirefence.parsed(text, text);
DROP FUNCTION wirefence.verdict(bigint, wirefence.resource_locks);
DROP FUNCTION wirefence.refuse(text, text, bigint, wirefence.resource_locks);
DROP FUNCTION wirefence.record(text, bigint);
DROP FUNCTION wirefence.refuse_stale(text[], bigint[]);
DROP FUNCTION wirefence.take_locks(text[], bigint[]);
DROP FUNCTION wirefence.judge(text[], bigint[]);
DROP FUNCTION wirefence.record_at_once(text, bigint);

CREATE OR REPLACE FUNCTION wirefence.malformed(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'WF004',
        MESSAGE = 'malformed fencing token',
        DETAIL = upper(left(reason, 1)) || substr(reason, 2) || '.',
        HINT = 'A fence is resource=token[@source][,resource=token[@source]...], with names percent-encoded outside A-Z a-z 0-9 _ . : / -';
END
$$;

-- source_of reads the name of a source; null names none.
CREATE FUNCTION wirefence.source_of(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name COLLATE "C" !~ '^[a-z][a-z0-9_.-]{0,31}$' THEN
        PERFORM wirefence.malformed('the name of a token''s source must have 1 to 32 bytes of a-z 0-9 _ . - and start with a letter');
    END IF;
    RETURN name;
END
$$;

-- parsed reads a fence into pairs, sorted by resource in byte order, at most
-- one for a resource. A bare token means default_resource. A source is null
-- where none is named; of two equal pairs one may leave it open.
CREATE FUNCTION wirefence.parsed(fence text, default_resource text, OUT resources text[], OUT tokens bigint[], OUT sources text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item text;
    cut integer;
    contested text;
    disputed text;
BEGIN
    IF fence = '' THEN
        PERFORM wirefence.malformed('it is empty');
    ELSIF octet_length(fence) > 26208 THEN
        PERFORM wirefence.malformed('it has ' || octet_length(fence) || ' bytes, at most 26208 are allowed');
    END IF;
    FOREACH item IN ARRAY string_to_array(fence, ',') LOOP
        cut := strpos(item, '=');
        IF cut > 0 THEN
            resources := resources || wirefence.decoded(left(item, cut - 1));
        ELSIF default_resource <> '' THEN
            resources := resources || default_resource;
        ELSE
            PERFORM wirefence.malformed('a pair is not of the form resource=token');
        END IF;
        item := substr(item, cut + 1);
        cut := strpos(item, '@');
        sources := array_append(sources, CASE WHEN cut > 0 THEN wirefence.source_of(substr(item, cut + 1)) END);
        tokens := tokens || wirefence.token_of(CASE WHEN cut > 0 THEN left(item, cut - 1) ELSE item END);
    END LOOP;
    SELECT array_agg(p.resource ORDER BY p.resource), array_agg(p.token ORDER BY p.resource), array_agg(p.source ORDER BY p.resource),
           min(p.resource) FILTER (WHERE p.contested), min(p.resource) FILTER (WHERE p.disputed)
    INTO resources, tokens, sources, contested, disputed
    FROM (SELECT u.resource COLLATE "C" AS resource, min(u.token) AS token, min(u.source COLLATE "C") AS source,
                 min(u.token) < max(u.token) AS contested, min(u.source COLLATE "C") < max(u.source COLLATE "C") AS disputed
          FROM unnest(resources, tokens, sources) AS u(resource, token, source) GROUP BY 1) AS p;
    IF contested IS NOT NULL THEN
        PERFORM wirefence.malformed('resource ' || wirefence.quoted(contested) || ' has two tokens');
    ELSIF disputed IS NOT NULL THEN
        PERFORM wirefence.malformed('the token of resource ' || wirefence.quoted(disputed) || ' has two sources');
    ELSIF cardinality(resources) > 32 THEN
        PERFORM wirefence.malformed('it names ' || cardinality(resources) || ' resources, at most 32 are allowed');
    END IF;
END
$$;

-- is_foreign reports whether a token can't be compared with those of a resource:
-- it names another source, or none where one is wanted. A resource that knows no
-- source yet takes the first.
CREATE FUNCTION wirefence.is_foreign(source text, known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(source <> (known).source, source IS NULL AND (known).must_name_source);

-- verdict judges a token by a row of resource_locks, of which an unknown
-- resource has only nulls: pass, record (accepted once the row says so), name
-- (accepted, and the first to name the source, which the row should say), or the
-- SQLSTATE of the refusal. Where only a seal advances, only a seal tells the
-- source.
CREATE FUNCTION wirefence.verdict(token bigint, source text, known wirefence.resource_locks) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN (known).resource_id IS NULL THEN 'record'
    WHEN wirefence.is_foreign(source, known) THEN 'WF003'
    WHEN token < (known).last_token THEN 'WF001'
    WHEN token > (known).last_token AND (known).advance = 'grant' THEN 'WF003'
    WHEN token > (known).last_token THEN 'record'
    WHEN (known).reuse = 'once' AND (known).used_token IS DISTINCT FROM token THEN 'record'
    WHEN (known).reuse = 'once' AND (known).used_xid IS DISTINCT FROM pg_current_xact_id_if_assigned() THEN 'WF005'
    WHEN source IS NOT NULL AND (known).source IS NULL AND (known).advance = 'use' THEN 'name'
    ELSE 'pass'
END;

-- refuse raises a verdict of class WF. The form of DETAIL's first sentence is
-- fixed: programs read it.
CREATE FUNCTION wirefence.refuse(state text, resource text, token bigint, source text, known wirefence.resource_locks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name text := wirefence.quoted(resource);
    reason text := CASE WHEN state = 'WF003' AND wirefence.is_foreign(source, known) THEN 'foreign' ELSE state END;
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = state,
        MESSAGE = CASE state
            WHEN 'WF001' THEN 'stale fencing token for resource '
            WHEN 'WF003' THEN 'unknown fencing token for resource '
            ELSE 'fencing token already used for resource ' END || name
            || CASE WHEN reason <> 'foreign' THEN '' ELSE
               coalesce(': it comes from ' || wirefence.quoted(source) || ', not from ', ': it does not say that it comes from ')
               || wirefence.quoted(known.source) END,
        DETAIL = 'Resource ' || name || ': presented token ' || token || ', current token ' || known.last_token
            || coalesce(', held by ' || wirefence.quoted(known.holder), '')
            || CASE WHEN known.holder IS NULL THEN '' ELSE
               coalesce(' since ' || to_char(known.granted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', '') END
            || '.'
            || CASE WHEN reason <> 'foreign' THEN '' ELSE ' Tokens of different sources do not compare.' END,
        HINT = CASE reason
            WHEN 'WF001' THEN 'A later holder has taken over. Stop this work: a retry with the same token can never succeed.'
            WHEN 'WF003' THEN 'Only a token that was granted and sealed counts for this resource. Acquire the lock and use its token.'
            WHEN 'foreign' THEN CASE WHEN source IS NULL
                THEN 'Name the source behind the token: resource=token@' || known.source || '.'
                ELSE 'All who compete for a resource must use one lock service. If it is to be another from now on: wirefence resource set NAME --source '
                     || source || ' --reason WHY.' END
            ELSE 'Each token of this resource is good for one transaction. Acquire the lock again.' END;
END
$$;

-- superseded reports whether a waiter's token has become pointless while it
-- waited, so that it must not end anybody. A null token is above all, of
-- whatever source. A snapshot can't tell: there the row is locked, which raises
-- 40001 if it has changed, and let go at once by rolling back, lest it stand in
-- a holder's way.
CREATE FUNCTION wirefence.superseded(resource text, new_token bigint, source text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        BEGIN
            PERFORM FROM wirefence.resource_locks AS l WHERE l.resource_id = resource FOR SHARE NOWAIT;
            IF NOT FOUND THEN
                RAISE serialization_failure USING MESSAGE = 'could not serialize access to a fenced resource';
            END IF;
            RAISE EXCEPTION 'unchanged';
        EXCEPTION WHEN raise_exception OR lock_not_available THEN
            RETURN false;
        END;
    END IF;
    RETURN EXISTS (
        SELECT FROM wirefence.resource_locks AS l
        WHERE l.resource_id = resource AND new_token IS NOT NULL
          AND (wirefence.is_foreign(superseded.source, l) OR l.last_token > new_token
               OR l.last_token = new_token AND (l.reuse = 'allow' OR l.used_token = new_token)));
END
$$;

-- lock_exclusive takes the resource's lock exclusively for a token; null is
-- above all tokens. After preempt_after it ends the older transactions in its
-- way, but only those that it has seen there one wait before: each timeout
-- gives up the place in the queue, and whoever stood behind comes in then and
-- gets a moment to finish. False means that the token was superseded and the
-- lock is not held.
CREATE FUNCTION wirefence.lock_exclusive(resource text, token bigint, source text, preempt_after interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    longest CONSTANT interval := least(preempt_after, interval '24 days'); -- what lock_timeout can hold
    patience bigint := CASE WHEN longest IS NULL THEN 0
                            ELSE greatest(ceil(extract(epoch FROM longest) * 1000), 1) END;
    give_up timestamptz := clock_timestamp() + longest + interval '30 s';
    rounds integer := 0;
    seen text[];
    present text[];
    victim record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        IF EXISTS (SELECT FROM wirefence.lock_holders AS h
                   WHERE h.key = wirefence.lock_key(resource) AND h.pid = pg_backend_pid()) THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction was checked for resource ' || wirefence.quoted(resource)
                    || ' before, and other writers are open: waiting for them could deadlock.';
        END IF;
        seen := ARRAY(SELECT o.virtualtransaction FROM wirefence.older_holders(resource, token) AS o);
        WHILE NOT wirefence.queue_exclusive(resource, patience) LOOP
            IF wirefence.superseded(resource, token, source) THEN
                RETURN false;
            ELSIF clock_timestamp() > give_up THEN
                RAISE lock_not_available USING
                    MESSAGE = 'could not take over resource ' || wirefence.quoted(resource),
                    DETAIL = 'Transactions that hold it did not end in time.',
                    HINT = 'See SELECT * FROM wirefence.status() and pg_locks for who holds it.';
            END IF;
            present := '{}';
            FOR victim IN SELECT * FROM wirefence.older_holders(resource, token) LOOP
                IF victim.virtualtransaction = ANY (seen) THEN
                    PERFORM wirefence.end_holder(resource, victim.pid, victim.virtualtransaction);
                END IF;
                present := present || victim.virtualtransaction;
            END LOOP;
            seen := present;
            patience := 250 << least(rounds, 3);
            rounds := rounds + 1;
        END LOOP;
    END IF;
    PERFORM wirefence.announce(resource, token);
    RETURN true;
END
$$;

-- record notes in the row that a token was accepted, and the source that it is
-- the first to name. The caller holds the lock exclusively; a row that has moved
-- on nevertheless is an operator's doing.
CREATE FUNCTION wirefence.record(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, source, granted_at)
    VALUES (resource, token, record.source, clock_timestamp())
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

-- name_source notes the source that a current token is the first to name, if
-- nobody else writes: those who do carry the same token, and none need wait for
-- the other. The caller holds the lock shared, and doesn't wait to have more.
CREATE FUNCTION wirefence.name_source(resource text, token bigint, source text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        PERFORM wirefence.announce(resource, token);
        PERFORM wirefence.record(resource, token, source);
    END IF;
END
$$;

-- refuse_stale gives the verdicts that need no lock: a token once superseded
-- stays so, even by the view of an old snapshot, while the others are final
-- only where each statement sees the present.
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

-- take_locks takes the lock of every pair in the order of the keys, exclusively
-- first where two names share a key. The mode follows from the row as it is
-- seen without a lock: going from shared to exclusive would make two first
-- writers deadlock. It returns the names locked exclusively; null means that a
-- token was superseded while it waited.
CREATE FUNCTION wirefence.take_locks(resources text[], tokens bigint[], sources text[]) RETURNS text[]
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
            PERFORM pg_advisory_xact_lock_shared(pair.key);
        ELSIF NOT wirefence.lock_exclusive(pair.resource, pair.token, pair.source, pair.preempt_after) THEN
            RETURN NULL;
        ELSE
            owned := owned || pair.resource;
        END IF;
    END LOOP;
    RETURN owned;
END
$$;

-- judge gives the verdict on each pair under its lock, all or nothing. In
-- REPEATABLE READ and SERIALIZABLE the row is read FOR SHARE, which raises
-- 40001 where the snapshot is out of date. A READ ONLY transaction can lock no
-- row and writes nothing that would need it: it is judged by what it sees, and
-- advances nothing.
CREATE FUNCTION wirefence.judge(resources text[], tokens bigint[], sources text[]) RETURNS void
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
        owned := wirefence.take_locks(resources, tokens, sources);
    END LOOP;
    FOR i IN 1 .. cardinality(resources) LOOP
        IF writable AND snapshot THEN
            SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resources[i] FOR SHARE;
        ELSE
            SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resources[i];
        END IF;
        verdict := wirefence.verdict(tokens[i], sources[i], known);
        IF verdict LIKE 'WF%' THEN
            PERFORM wirefence.refuse(verdict, resources[i], tokens[i], sources[i], known);
        ELSIF verdict = 'record' AND writable THEN
            IF resources[i] <> ALL (owned) THEN
                RAISE serialization_failure USING MESSAGE = 'could not serialize access to a fenced resource';
            END IF;
            PERFORM wirefence.record(resources[i], tokens[i], sources[i]);
        ELSIF verdict = 'name' AND writable THEN
            PERFORM wirefence.name_source(resources[i], tokens[i], sources[i]);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION wirefence.check_all(fence text, default_resource text, required boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pairs record;
BEGIN
    IF fence IS NULL THEN
        fence := nullif(current_setting('wirefence.token', true), '');
        IF fence IS NULL THEN
            IF required THEN
                PERFORM wirefence.refuse_unfenced();
            END IF;
            RETURN;
        END IF;
    END IF;
    pairs := wirefence.parsed(fence, default_resource);
    PERFORM wirefence.judge(pairs.resources, pairs.tokens, pairs.sources);
END
$$;

-- check is as in 004, but for the source that a fence may name.
CREATE OR REPLACE FUNCTION wirefence.check(fence text, default_resource text, required boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried text := fence;
BEGIN
    IF carried IS NULL THEN
        carried := current_setting('wirefence.token', true);
    END IF;
    IF default_resource IS NOT NULL AND strpos(carried, '=') = 0 THEN
        carried := default_resource || '=' || carried;
    END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        BEGIN
            IF pg_try_advisory_xact_lock_shared(wirefence.lock_key(split_part(carried, '=', 1))) THEN
                PERFORM FROM wirefence.resource_locks AS l
                WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried);
                IF FOUND THEN
                    RETURN;
                END IF;
                RAISE EXCEPTION 'not the frequent case';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
          AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM pg_advisory_xact_lock_shared(wirefence.lock_key(l.resource_id))
        FROM wirefence.resource_locks AS l
        WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried);
        IF FOUND THEN
            PERFORM FROM wirefence.resource_locks AS l
            WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried) FOR SHARE;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    PERFORM wirefence.check_all(fence, default_resource, required);
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

CREATE OR REPLACE FUNCTION wirefence.observe(fence text, default_resource text, required boolean) RETURNS text
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
            PERFORM wirefence.refuse_unfenced();
        END IF;
        RETURN NULL;
    END IF;
    pairs := wirefence.parsed(fence, default_resource);
    FOR pair IN
        SELECT u.resource, u.token, u.source, l AS known, wirefence.verdict(u.token, u.source, l) AS verdict
        FROM unnest(pairs.resources, pairs.tokens, pairs.sources) AS u(resource, token, source)
        LEFT JOIN wirefence.resource_locks AS l ON l.resource_id = u.resource
        ORDER BY u.resource COLLATE "C"
    LOOP
        IF pair.verdict LIKE 'WF%' THEN
            PERFORM wirefence.refuse(pair.verdict, pair.resource, pair.token, pair.source, pair.known);
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
