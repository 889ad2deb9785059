-- Writers and takeovers exclude each other by an advisory lock for each resource. A writer
-- with the current token holds it in shared mode until its transaction ends. A session that
-- raises the token holds it exclusively. PostgreSQL queues advisory locks fairly. Row locks
-- are not fair, and would starve the takeover.
SET LOCAL search_path = pg_catalog, pg_temp;

-- lock_key returns the key of the advisory lock of a resource.
CREATE FUNCTION wirefence.lock_key(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN hashtextextended(resource COLLATE "C", 8604534342903230051);

-- pg_locks shows the key of a lock, so holders are looked up by key.
CREATE INDEX resource_locks_key ON wirefence.resource_locks (wirefence.lock_key(resource_id));

-- lock_holders lists the backends that hold an advisory lock, by key. The pid of a prepared
-- transaction is null.
CREATE VIEW wirefence.lock_holders AS
SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.pid, l.virtualtransaction,
       bool_or(l.mode = 'ExclusiveLock') AS exclusive
FROM pg_locks AS l
JOIN pg_database AS d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
GROUP BY 1, 2, 3;

-- Beside the lock of a resource there are locks of two integers, which block no writer. high
-- and low are the halves of the resource's key.
--
--   (high, low # number)  the mark of a hold: the session holds the lock of the resource for
--                         the proxy with this number
--   (low, high)           the wanted key: a takeover of the resource is under way
CREATE FUNCTION wirefence.high(key bigint) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (key >> 32)::integer;

CREATE FUNCTION wirefence.low(key bigint) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (key << 32 >> 32)::integer;

-- refuse_own_hold raises if the session itself holds a resource that it is about to take
-- over, for any proxy. A backend's own locks don't conflict with each other, so the
-- session would continue under the hold of a stale token.
CREATE FUNCTION wirefence.refuse_own_hold(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_locks AS l
               WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.pid = pg_backend_pid() AND l.mode = 'ShareLock' AND l.granted
                 AND l.classid::integer = wirefence.high(wirefence.lock_key(resource))) THEN
        RAISE object_in_use USING
            MESSAGE = 'this session holds resource ' || wirefence.quote_name(resource) || ', which it is to take over',
            DETAIL = 'A takeover cannot wait for its own session.',
            HINT = 'Take over outside a transaction by a statement that names wirefence, or in another session.';
    END IF;
END
$$;

-- A secret that only wirefence_owner can read. Without it nobody can forge an announcement.
CREATE TABLE wirefence.secret (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secret   text NOT NULL DEFAULT gen_random_uuid()::text
);

COMMENT ON TABLE wirefence.secret IS 'Only wirefence_owner may read it. A role that knew it could block takeovers by an advisory lock.';

INSERT INTO wirefence.secret DEFAULT VALUES;

-- announcement returns half of the key by which a transaction announces a token. Only
-- wirefence_owner can compute it, and it differs in each transaction.
CREATE FUNCTION wirefence.announcement(half text, resource text, transaction xid) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ('x' || left(encode(sha256(convert_to(concat_ws(' ', s.secret, half, transaction::text, resource), 'UTF8')), 'hex'), 8))::bit(32)::integer
    FROM wirefence.secret AS s;
$$;

-- announce publishes the token of a session that holds a resource exclusively, as two more
-- advisory locks that carry the halves of the token. A waiting takeover cannot see the row of
-- that session before its commit. Without the announcement a takeover with a stale token
-- could take it for an older holder and terminate it. Shared holders need no announcement:
-- they carry the recorded token.
CREATE FUNCTION wirefence.announce(resource text, token bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_try_advisory_xact_lock_shared(wirefence.announcement('high', resource, pg_current_xact_id()::xid), (token >> 32)::integer),
           pg_try_advisory_xact_lock_shared(wirefence.announcement('low', resource, pg_current_xact_id()::xid), (token & 4294967295)::bit(32)::integer);
$$;

-- announced returns the token that a transaction has announced, null if it has announced
-- none.
CREATE FUNCTION wirefence.announced(resource text, holder_vxid text) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    WITH locks AS MATERIALIZED (SELECT l.* FROM pg_locks AS l WHERE l.virtualtransaction = holder_vxid AND l.granted)
    SELECT max(high.objid::bigint << 32 | low.objid::bigint)
    FROM locks AS x
    JOIN locks AS high ON high.locktype = 'advisory' AND high.objsubid = 2
         AND high.classid::bigint = wirefence.announcement('high', resource, x.transactionid)::bigint & 4294967295
    JOIN locks AS low ON low.locktype = 'advisory' AND low.objsubid = 2
         AND low.classid::bigint = wirefence.announcement('low', resource, x.transactionid)::bigint & 4294967295
    WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock';
$$;

-- may_end reports whether a role may end a backend by itself, as far as wirefence_owner can do it for
-- the role.
CREATE FUNCTION wirefence.may_end(caller text, holder_pid integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM pg_stat_activity AS a JOIN pg_roles AS r ON r.oid = a.usesysid
                   WHERE a.pid = holder_pid AND pg_has_role(caller, r.oid, 'USAGE') AND NOT r.rolsuper)
$$;

-- blocking_holders lists the backends that block a takeover with a token; a null token
-- exceeds all others. A backend that has announced the same or a higher token does not block
-- it.
--
-- is_idle says that the backend is idle outside a transaction and is not sending an answer to
-- its client: its client or proxy pauses, and terminating it loses no transaction. since is
-- when it became idle; for other backends, when their transaction began. The state is null
-- where wirefence_owner lacks pg_read_all_stats.
CREATE FUNCTION wirefence.blocking_holders(resource text, token bigint)
RETURNS TABLE (pid integer, backend_start timestamptz, virtualtransaction text, is_idle boolean, since timestamptz)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT h.pid, a.backend_start, h.virtualtransaction, i.is_idle, CASE WHEN i.is_idle THEN a.state_change ELSE a.xact_start END
    FROM wirefence.lock_holders AS h
    LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid,
    LATERAL (SELECT coalesce(a.state = 'idle' AND a.state_change < clock_timestamp() - interval '250 ms'
                             AND a.wait_event IS DISTINCT FROM 'ClientWrite', false) AS is_idle) AS i
    WHERE h.key = wirefence.lock_key(resource) AND h.pid IS DISTINCT FROM pg_backend_pid()
      AND CASE WHEN NOT h.exclusive OR token IS NULL OR i.is_idle THEN true
               ELSE coalesce(token > wirefence.announced(resource, h.virtualtransaction), true) END;
$$;

-- end_holder terminates the backend of one holder and records that. If it cannot, it raises
-- an error that says why and what an operator can do. Terminating the backends before it took
-- time, so it spares a backend that no longer holds the lock, and, if since is given, one that
-- has begun another transaction.
--
-- pg_terminate_backend warns if the backend is already gone. client_min_messages keeps this
-- warning from the client.
CREATE FUNCTION wirefence.end_holder(resource text, holder_pid integer, holder_vxid text, since timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
DECLARE
    gid text;
    ended record;
BEGIN
    IF holder_pid IS NULL THEN
        SELECT p.gid INTO gid
        FROM pg_locks AS l JOIN pg_prepared_xacts AS p ON p.transaction = l.transactionid
        WHERE l.locktype = 'transactionid' AND l.pid IS NULL AND l.virtualtransaction = holder_vxid;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = 'a prepared transaction holds resource ' || wirefence.quote_name(resource),
            DETAIL = 'Prepared transaction ' || quote_literal(gid) || ' was checked with an older token and is still open.' || wirefence.describe_ended(),
            HINT = 'End it with ROLLBACK PREPARED ' || quote_literal(gid) || ' or COMMIT PREPARED ' || quote_literal(gid) || ', then try again.';
    END IF;
    PERFORM pg_stat_clear_snapshot();
    SELECT a.usename AS login, a.application_name AS application, a.state_change, a.xact_start INTO ended
    FROM pg_stat_activity AS a WHERE a.pid = holder_pid;
    IF since IS NOT NULL AND since IS DISTINCT FROM ended.state_change AND since IS DISTINCT FROM ended.xact_start
       OR NOT EXISTS (SELECT FROM wirefence.lock_holders AS h WHERE h.key = wirefence.lock_key(resource) AND h.pid = holder_pid) THEN
        RETURN;
    END IF;
    IF pg_terminate_backend(holder_pid) THEN
        RAISE LOG 'wirefence ends process % of %, which holds resource % with an older token', holder_pid, ended.login, wirefence.quote_name(resource);
        PERFORM wirefence.note_ended(resource, holder_pid, ended.login, ended.application);
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION USING
        ERRCODE = 'insufficient_privilege',
        MESSAGE = 'not allowed to end process ' || holder_pid || ', which holds resource ' || wirefence.quote_name(resource),
        DETAIL = 'wirefence_owner may not end this backend: ' || SQLERRM || '.' || wirefence.describe_ended(),
        HINT = CASE WHEN pg_has_role('wirefence_owner', 'pg_signal_backend', 'USAGE')
            THEN 'The process belongs to a superuser: let a superuser run SELECT pg_terminate_backend(' || holder_pid || '). Superusers should not write under a fence.'
            ELSE 'Let a superuser run GRANT pg_signal_backend TO wirefence_owner, or SELECT pg_terminate_backend(' || holder_pid || ').' END;
END
$$;

-- is_foreign reports whether a token cannot be compared with the tokens of a resource: it
-- names another source, or none where one is required. A resource that has no source yet
-- accepts any.
CREATE FUNCTION wirefence.is_foreign(source text, known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(source <> (known).source, source IS NULL AND (known).must_name_source);

-- superseded reports whether the token of a waiting takeover became stale while it waited, so
-- that it must not terminate anybody. A null token exceeds all others, of any source.
--
-- A transaction with an older snapshot cannot see that in the row. There superseded locks the
-- row, which raises 40001 if the row has changed, and rolls the lock back at once so that it
-- does not block a holder.
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

-- out_of_order reports whether the transaction holds a lock whose key follows that of a
-- resource in the order of keys, so that it should have taken the lock of this resource
-- first.
CREATE FUNCTION wirefence.out_of_order(resource text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM wirefence.lock_holders AS h
                   WHERE h.pid = pg_backend_pid() AND h.key > wirefence.lock_key(resource));
$$;

-- locks_a_table reports whether the transaction has locked a table against writers. The check
-- stands behind a LOCK, so a stale transaction may have a table that its successor waits for.
CREATE FUNCTION wirefence.locks_a_table() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted
                   AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
$$;

-- wait_for_lock waits in the queue of the lock for at most this many milliseconds; 0 waits
-- without limit. The lock lasts until the transaction ends, so that a wait that fails leaves
-- none. granted is false if the time has passed. deadlocks counts the deadlocks; a caller
-- that waits again passes the count on.
--
-- A check takes its locks in the order of their keys, and transactions that all wait in order
-- cannot deadlock. Several checks or several seals in one transaction may take locks out of
-- order. PostgreSQL resolves a deadlock by aborting the first transaction that detects it.
-- Here a transaction that waits in order must not be aborted for that: it waits again, and
-- the transaction that locked out of order, or a table, is aborted. That one leaves the queue and waits
-- again at short intervals, because PostgreSQL looks for a deadlock only once in each wait,
-- deadlock_timeout after its begin. The application's own locks may be part of a deadlock,
-- too, and their waiter may have looked for it already, so max_deadlocks bounds the retries.
CREATE FUNCTION wirefence.wait_for_lock(resource text, exclusive boolean, milliseconds bigint, INOUT deadlocks integer, OUT granted boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET client_min_messages = error
AS $$
DECLARE
    max_deadlocks CONSTANT integer := 10;
    slice CONSTANT bigint := least(ceil(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 2000), 2147483647);
    ends_at CONSTANT timestamptz := CASE WHEN milliseconds > 0 THEN clock_timestamp() + milliseconds * interval '1 ms' END;
    remaining bigint := milliseconds;
    out_of_order boolean; -- null until the first wait has ended
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', CASE
                WHEN out_of_order IS FALSE OR remaining BETWEEN 1 AND slice THEN remaining ELSE slice END::text, true);
            IF exclusive THEN
                PERFORM pg_advisory_xact_lock(wirefence.lock_key(resource));
            ELSE
                PERFORM pg_advisory_xact_lock_shared(wirefence.lock_key(resource));
            END IF;
            granted := true;
            RETURN;
        EXCEPTION
            WHEN lock_not_available THEN NULL;
            WHEN deadlock_detected THEN deadlocks := deadlocks + 1;
        END;
        out_of_order := coalesce(out_of_order, wirefence.out_of_order(resource));
        IF deadlocks > max_deadlocks OR deadlocks > 0 AND (out_of_order OR NOT exclusive AND wirefence.locks_a_table()) THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction waited for resource ' || wirefence.quote_name(resource)
                    || ', while other transactions waited for this one: a deadlock.',
                HINT = 'Retry the transaction. If the fence of its first write names all its resources, the transaction locks them in order.';
        END IF;
        IF ends_at IS NOT NULL THEN
            remaining := ceil(extract(epoch FROM ends_at - clock_timestamp()) * 1000);
            IF remaining <= 0 THEN
                granted := false;
                RETURN;
            END IF;
        END IF;
    END LOOP;
END
$$;

-- wait_for_shared_lock waits for the lock of a resource in shared mode, at most for the
-- lock_timeout of the client.
CREATE FUNCTION wirefence.wait_for_shared_lock(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT (wirefence.wait_for_lock(resource, false, ceil(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint, 0)).granted THEN
        RAISE lock_not_available USING
            MESSAGE = 'canceling statement due to lock timeout',
            DETAIL = 'Resource ' || wirefence.quote_name(resource) || ' is being taken over.';
    END IF;
END
$$;

-- next_wait returns for how many milliseconds a takeover waits in the queue of the lock
-- before it inspects the holders again. When it leaves the queue, the sessions behind it get
-- the lock. They need time to finish or to release their holds: after 50 ms, where their
-- proxy does not know that they are wanted. So each wait is several times that, and grows
-- with the number of inspections, up to the moment at which holders are terminated. The
-- second inspection is after half a second, and finds a proxy that froze behind the first.
CREATE FUNCTION wirefence.next_wait(looks integer, preempt_at timestamptz, deadline timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pause CONSTANT bigint := CASE looks WHEN 1 THEN 200 ELSE 300 << least(greatest(looks - 2, 0), 2) END;
    until_preempt CONSTANT bigint := ceil(extract(epoch FROM preempt_at - clock_timestamp()) * 1000);
BEGIN
    IF until_preempt BETWEEN 1 AND pause * 3 / 2 OR looks = 0 AND until_preempt <= 0 THEN
        RETURN greatest(until_preempt, 1);
    END IF;
    RETURN greatest(least(pause, ceil(extract(epoch FROM deadline - clock_timestamp()) * 1000)), 1);
END
$$;

-- inspect_holders lists the holders that block a takeover, as backends and as transactions,
-- and terminates some of them. In stage 0 it terminates none. From stage 1 on, when the
-- takeover has been known for 200 ms at least, so that a live proxy has released its holds, it
-- terminates idle backends, if it has the right. From stage 2 on, when preempt_after has
-- passed, it terminates the backends that it saw in the same transaction one wait before. In
-- stage 3 it terminates every backend that it saw before. A takeover that no issuer makes, an
-- advance on use, terminates only backends that its caller may end.
CREATE FUNCTION wirefence.inspect_holders(resource text, token bigint, seen text[], stage integer, caller text) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder record;
    present text[] := '{}';
BEGIN
    PERFORM pg_stat_clear_snapshot();
    FOR holder IN
        SELECT w.*, concat_ws(' ', w.pid, w.backend_start) AS backend, concat_ws(' ', w.pid, w.backend_start, w.virtualtransaction) AS transaction
        FROM wirefence.blocking_holders(resource, token) AS w
    LOOP
        present := present || ARRAY[holder.backend, holder.transaction];
        CONTINUE WHEN stage = 0 OR caller IS NOT NULL AND holder.pid IS NOT NULL AND NOT wirefence.may_end(caller, holder.pid);
        IF stage >= 3 AND holder.backend = ANY (seen) THEN
            PERFORM wirefence.end_holder(resource, holder.pid, holder.virtualtransaction, NULL);
        ELSIF stage >= 2 AND holder.transaction = ANY (seen) THEN
            PERFORM wirefence.end_holder(resource, holder.pid, holder.virtualtransaction, holder.since);
        ELSIF stage >= 1 AND holder.is_idle THEN
            BEGIN
                PERFORM wirefence.end_holder(resource, holder.pid, holder.virtualtransaction, holder.since);
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;
            END;
        END IF;
    END LOOP;
    RETURN present;
END
$$;

-- take_wanted_key takes the wanted key of a resource for the transaction. Proxies that hold
-- the resource ask for it and release their holds. A proxy that asks has the key exclusively
-- for a moment, and any role can take it for longer, so take_wanted_key gives up after 10 ms,
-- and returns false. A block with EXCEPTION around it would release the key at its end.
CREATE FUNCTION wirefence.take_wanted_key(resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT bigint := wirefence.lock_key(resource);
BEGIN
    FOR attempt IN 1..10 LOOP
        IF pg_try_advisory_xact_lock_shared(wirefence.low(key), wirefence.high(key)) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN false;
END
$$;

-- refuse_advance raises 55P03 if a holder blocks an advance on use that may not end it, and was seen
-- in the same transaction one wait before.
CREATE FUNCTION wirefence.refuse_advance(resource text, token bigint, seen text[], caller text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    blocking text;
BEGIN
    PERFORM pg_stat_clear_snapshot();
    SELECT string_agg('process ' || w.pid || ' of role ' || a.usename, ', ' ORDER BY w.pid) INTO blocking
    FROM wirefence.blocking_holders(resource, token) AS w JOIN pg_stat_activity AS a ON a.pid = w.pid -- others are gone by now
    WHERE NOT wirefence.may_end(caller, w.pid) AND (w.is_idle OR concat_ws(' ', w.pid, w.backend_start, w.virtualtransaction) = ANY (seen))
      AND (a.state <> 'active' OR wirefence.announced(resource, w.virtualtransaction) IS NULL) IS NOT FALSE; -- a takeover under way ends by itself
    IF blocking IS NOT NULL THEN
        RAISE lock_not_available USING
            MESSAGE = 'could not take over resource ' || wirefence.quote_name(resource),
            DETAIL = 'It is held by ' || blocking || ', whose sessions role ' || caller || ' may not end.' || wirefence.describe_ended(),
            HINT = 'Retry the transaction later, or let an issuer grant the token: its seal ends the holders.';
    END IF;
END
$$;

-- lock_exclusive takes the lock of a resource exclusively for a token; a null token exceeds
-- all others. It makes the resource wanted, waits in the queue of the lock and inspects the
-- holders at intervals: see inspect_holders and next_wait. False means that the token was
-- superseded and the lock is not held.
--
-- preempt_after bounds the takeover instead of the session's lock_timeout. Only where
-- preempt_after is unlimited does lock_timeout bound it.
--
-- An advance on use has a caller, and gives up after preempt_after if that may not end a holder. Where
-- it has waited inside a trigger, the statement that fired that may have a snapshot from before the last
-- holder's commit. It has not if the same token was recorded, under the lock, before the statement began.
CREATE FUNCTION wirefence.lock_exclusive(resource text, token bigint, source text, preempt_after interval, caller text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    preempt_at CONSTANT timestamptz := began + least(preempt_after, interval '24 days');
    deadline CONSTANT timestamptz := CASE WHEN preempt_after IS NOT NULL THEN preempt_at + interval '30 s'
        WHEN current_setting('lock_timeout')::interval > interval '0' THEN began + current_setting('lock_timeout')::interval END;
    granted boolean;
    superseded boolean;
    deadlocks integer := 0;
    looks integer := 0;
    stage integer := 1;
    known boolean; -- the resource is wanted
    seen text[];
BEGIN
    PERFORM wirefence.refuse_own_hold(resource);
    IF NOT pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        IF EXISTS (SELECT FROM wirefence.lock_holders AS h
                   WHERE h.key = wirefence.lock_key(resource) AND h.pid = pg_backend_pid()) THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction was checked for resource ' || wirefence.quote_name(resource)
                    || ' before, and other writers of it have open transactions: waiting for them could deadlock.',
                HINT = 'Retry the transaction.';
        END IF;
        known := wirefence.take_wanted_key(resource);
        seen := wirefence.inspect_holders(resource, token, '{}', 0, caller);
        LOOP
            BEGIN
                SELECT q.deadlocks, q.granted INTO deadlocks, granted
                FROM wirefence.wait_for_lock(resource, true, wirefence.next_wait(looks, preempt_at, deadline), deadlocks) AS q;
                superseded := CASE WHEN granted AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN false -- the caller locks the row
                                   ELSE wirefence.superseded(resource, token, source) END;
                IF granted AND superseded THEN
                    RAISE SQLSTATE 'WF000'; -- gives the lock back, for which others of the same token wait
                END IF;
            EXCEPTION WHEN SQLSTATE 'WF000' THEN
                granted := false;
            END;
            EXIT WHEN granted OR superseded;
            IF clock_timestamp() > deadline AND preempt_after IS NULL THEN
                RAISE lock_not_available USING
                    MESSAGE = 'canceling statement due to lock timeout',
                    DETAIL = 'Older transactions hold resource ' || wirefence.quote_name(resource) || ', and its preempt_after ends none.';
            ELSIF clock_timestamp() > deadline THEN
                RAISE lock_not_available USING
                    MESSAGE = 'could not take over resource ' || wirefence.quote_name(resource),
                    DETAIL = 'Transactions that hold the resource did not end in time.',
                    HINT = 'SELECT * FROM wirefence.status() and pg_locks show the holders.';
            END IF;
            looks := looks + 1;
            IF clock_timestamp() >= preempt_at THEN
                PERFORM wirefence.refuse_advance(resource, token, seen, caller) WHERE caller IS NOT NULL;
                stage := least(stage + 1, 3);
                looks := 2;
            END IF;
            seen := wirefence.inspect_holders(resource, token, seen, CASE WHEN known OR stage > 1 OR looks > 3 THEN stage ELSE 0 END, caller);
            known := wirefence.take_wanted_key(resource);
        END LOOP;
        IF caller IS NOT NULL AND pg_trigger_depth() > 0 AND NOT EXISTS (
            SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = resource AND l.last_token = token AND l.granted_at < statement_timestamp()) THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'The statement waited for former holders of resource ' || wirefence.quote_name(resource) || ', and does not see what they committed.',
                HINT = 'Retry the transaction.';
        ELSIF superseded THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM wirefence.announce(resource, token), wirefence.settle_citus(resource, wirefence.citus_group() IS NULL);
    RETURN true;
END
$$;
