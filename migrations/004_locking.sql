-- How writers and takeovers exclude each other. A writer with the current
-- token holds the advisory lock of its resource shared until its transaction
-- ends; whoever moves the token on holds it exclusively. Advisory locks are
-- queued fairly; row locks are not, and starve the takeover.
SET LOCAL search_path = pg_catalog, pg_temp;

-- lock_key is the key of a resource's advisory lock.
CREATE FUNCTION wirefence.lock_key(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN hashtextextended(resource COLLATE "C", 8604534342903230051);

-- Holders are found by it, not by name.
CREATE INDEX resource_locks_key ON wirefence.resource_locks (wirefence.lock_key(resource_id));

-- lock_holders lists the backends that hold an advisory lock, by key. A
-- prepared transaction has no pid.
CREATE VIEW wirefence.lock_holders AS
SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.pid, l.virtualtransaction,
       bool_or(l.mode = 'ExclusiveLock') AS exclusive
FROM pg_locks AS l
JOIN pg_database AS d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
GROUP BY 1, 2, 3;

-- own_holds lists the keys that wirefence.hold has taken for this session. It
-- takes each key twice: as a bigint, which keeps takeovers out, and as two
-- integers, which keeps nobody out and tells the hold from a check of the
-- transaction and from locks of the application's own.
CREATE VIEW wirefence.own_holds AS
SELECT (l.classid::bigint << 32) | l.objid::bigint AS key
FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.mode = 'ShareLock' AND l.granted
GROUP BY l.classid, l.objid HAVING count(*) = 2;

-- refuse_own_hold raises where the session itself holds a resource that it is to
-- take over: a backend's own locks don't conflict with each other, so it would go
-- on under the hold of a token that isn't current any more.
CREATE FUNCTION wirefence.refuse_own_hold(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF wirefence.lock_key(resource) IN (SELECT h.key FROM wirefence.own_holds AS h) THEN
        RAISE object_in_use USING
            MESSAGE = 'this session holds resource ' || wirefence.quoted(resource) || ' itself',
            DETAIL = 'A takeover waits for those who hold the resource, but never for its own session.',
            HINT = 'SELECT wirefence.unhold() first, outside a transaction.';
    END IF;
END
$$;

-- A secret of the owner's, by which announcements can't be forged.
CREATE TABLE wirefence.secret (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secret   text NOT NULL DEFAULT gen_random_uuid()::text
);

COMMENT ON TABLE wirefence.secret IS 'For the owner alone. With it, a role could keep takeovers out by an advisory lock.';

INSERT INTO wirefence.secret DEFAULT VALUES;

-- announcement is half of the key by which a transaction announces a token. Nobody
-- but the owner can compute it, and it is another in each transaction.
CREATE FUNCTION wirefence.announcement(half text, resource text, transaction xid) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ('x' || left(encode(sha256(convert_to(concat_ws(' ', s.secret, half, transaction::text, resource), 'UTF8')), 'hex'), 8))::bit(32)::integer
    FROM wirefence.secret AS s;
$$;

-- announce publishes the token that an exclusive holder came with, as two more
-- advisory locks that carry its halves. Without it a stale waiter could take a
-- newer holder, whose row it can't see before the commit, for an older one and
-- end it. Shared holders need no announcement: theirs is the recorded token.
CREATE FUNCTION wirefence.announce(resource text, token bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_try_advisory_xact_lock_shared(wirefence.announcement('high', resource, pg_current_xact_id()::xid), (token >> 32)::integer),
           pg_try_advisory_xact_lock_shared(wirefence.announcement('low', resource, pg_current_xact_id()::xid), (token & 4294967295)::bit(32)::integer);
$$;

-- announced is the token that a transaction has announced, null if it has none.
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

-- in_the_way lists the backends that keep a takeover with a token out; a null token is above
-- all. A backend that has announced the same or a higher token isn't in its way. One that
-- is idle outside a transaction, and doesn't wait for its client to take the answer,
-- belongs to a client or proxy that pauses, and loses no transaction by its end. It does
-- so since a time; other backends are in their transaction since then. The
-- state is null where wirefence_owner lacks pg_read_all_stats.
CREATE FUNCTION wirefence.in_the_way(resource text, token bigint)
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

-- end_holder ends the backend of one holder and tells of it, or says what keeps it
-- from that and what an operator can do. Where since is given, a backend is let live that
-- has begun something else meanwhile: ending those before it took time. Holders are known by the key of their lock
-- alone, and a name that has a given key can be computed: so that a client doesn't use
-- one to have holders of another resource ended, where several share a key only
-- issuers end any. That a backend is gone already is no news to
-- the client, hence client_min_messages.
CREATE FUNCTION wirefence.end_holder(resource text, holder_pid integer, holder_vxid text, since timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
DECLARE
    gid text;
    ended record;
    other text;
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
            MESSAGE = 'a prepared transaction holds resource ' || wirefence.quoted(resource),
            DETAIL = 'Prepared transaction ' || quote_literal(gid) || ' was checked with an older token and is still open.' || wirefence.ended_before(),
            HINT = 'End it with ROLLBACK PREPARED ' || quote_literal(gid) || ' or COMMIT PREPARED ' || quote_literal(gid) || ', then try again.';
    END IF;
    SELECT l.resource_id INTO other FROM wirefence.resource_locks AS l
    WHERE l.resource_id <> resource AND wirefence.lock_key(l.resource_id) = wirefence.lock_key(resource)
      AND NOT pg_has_role(session_user, 'wirefence_issuer', 'MEMBER') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'the holder of resource ' || wirefence.quoted(resource) || ' can''t be ended, because it may hold another resource',
            DETAIL = 'Resource ' || wirefence.quoted(other) || ' has the same lock.',
            HINT = 'Only members of wirefence_issuer may end it. Choose another resource name.';
    END IF;
    PERFORM pg_stat_clear_snapshot();
    SELECT a.usename AS login, a.application_name AS application, a.state_change, a.xact_start INTO ended
    FROM pg_stat_activity AS a WHERE a.pid = holder_pid;
    IF since IS NOT NULL AND since IS DISTINCT FROM ended.state_change AND since IS DISTINCT FROM ended.xact_start THEN
        RETURN;
    END IF;
    IF pg_terminate_backend(holder_pid) THEN
        RAISE LOG 'wirefence ends process % of %, which holds resource % with an older token', holder_pid, ended.login, wirefence.quoted(resource);
        PERFORM wirefence.note_ended(resource, holder_pid, ended.login, ended.application);
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    IF other IS NOT NULL THEN
        RAISE;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'insufficient_privilege',
        MESSAGE = 'not allowed to end process ' || holder_pid || ', which holds resource ' || wirefence.quoted(resource),
        DETAIL = 'wirefence_owner may not end this backend: ' || SQLERRM || '.' || wirefence.ended_before(),
        HINT = CASE WHEN pg_has_role('wirefence_owner', 'pg_signal_backend', 'USAGE')
            THEN 'The process belongs to a superuser: let a superuser run SELECT pg_terminate_backend(' || holder_pid || '), and don''t let superusers write under a fence.'
            ELSE 'Let a superuser run GRANT pg_signal_backend TO wirefence_owner, or SELECT pg_terminate_backend(' || holder_pid || ').' END;
END
$$;

-- is_foreign reports whether a token can't be compared with those of a resource:
-- it names another source, or none where one is wanted. A resource that knows no
-- source yet takes the first.
CREATE FUNCTION wirefence.is_foreign(source text, known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(source <> (known).source, source IS NULL AND (known).must_name_source);

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

-- out_of_order reports whether the transaction holds a lock whose key comes after
-- that of a resource, so that it should have taken this one's before.
CREATE FUNCTION wirefence.out_of_order(resource text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM wirefence.lock_holders AS h
                   WHERE h.pid = pg_backend_pid() AND h.key > wirefence.lock_key(resource));
$$;

-- queue waits in the lock's queue for at most so many milliseconds; 0 waits for
-- ever. The mode is shared or exclusive, until the transaction ends, or session, which is
-- shared until the session gives it back. False means that the time is over. circles
-- counts deadlocks; who comes back into the queue brings it along.
--
-- A check takes its locks in order, and where all wait in order none wait in a
-- circle. Several checks in one transaction may not, nor several seals. PostgreSQL
-- ends a circle by failing whoever is the first to look. Here that is not for those
-- who wait in order: they wait again, and who is out of order gives way. It queues
-- anew all the time, as PostgreSQL looks only once in each wait, deadlock_timeout
-- after its begin. Locks of the application's own may be part of a circle, too, and
-- who waits for them may have looked already: so nobody waits again for ever.
CREATE FUNCTION wirefence.queue(resource text, mode text, milliseconds bigint, INOUT circles integer, OUT granted boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 SET client_min_messages = error
AS $$
DECLARE
    last_look CONSTANT integer := 10;
    turn CONSTANT bigint := least(ceil(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 2000), 2147483647);
    over CONSTANT timestamptz := CASE WHEN milliseconds > 0 THEN clock_timestamp() + milliseconds * interval '1 ms' END;
    remaining bigint := milliseconds;
    out_of_order boolean; -- null until the first turn is over
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', CASE
                WHEN out_of_order IS FALSE OR remaining BETWEEN 1 AND turn THEN remaining ELSE turn END::text, true);
            IF mode = 'exclusive' THEN
                PERFORM pg_advisory_xact_lock(wirefence.lock_key(resource));
            ELSIF mode = 'shared' THEN
                PERFORM pg_advisory_xact_lock_shared(wirefence.lock_key(resource));
            ELSE
                PERFORM pg_advisory_lock_shared(wirefence.lock_key(resource));
            END IF;
            granted := true;
            RETURN;
        EXCEPTION
            WHEN lock_not_available THEN
                -- Granted in that moment it is the session's, whom no rollback takes it from.
                IF mode = 'session' THEN
                    PERFORM pg_advisory_unlock_shared(wirefence.lock_key(resource));
                END IF;
            WHEN deadlock_detected THEN circles := circles + 1;
        END;
        out_of_order := coalesce(out_of_order, wirefence.out_of_order(resource));
        IF circles > last_look OR out_of_order AND circles > 0 THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction waited for resource ' || wirefence.quoted(resource)
                    || ', while other transactions waited for this one: a deadlock.',
                HINT = 'Try the transaction again. With a fence that names all its resources from its first write on, it waits for them in order.';
        END IF;
        IF over IS NOT NULL THEN
            remaining := ceil(extract(epoch FROM over - clock_timestamp()) * 1000);
            IF remaining <= 0 THEN
                granted := false;
                RETURN;
            END IF;
        END IF;
    END LOOP;
END
$$;

-- await_shared waits for the resource's lock, in mode shared or session, for as long
-- as the client's lock_timeout lets it.
CREATE FUNCTION wirefence.await_shared(resource text, mode text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT (wirefence.queue(resource, mode, ceil(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint, 0)).granted THEN
        RAISE lock_not_available USING
            MESSAGE = 'canceling statement due to lock timeout',
            DETAIL = 'Resource ' || wirefence.quoted(resource) || ' is being taken over.';
    END IF;
END
$$;

-- next_look says how many milliseconds a takeover waits in the lock's queue before it
-- looks round again. Those behind it come in when it leaves the queue. They
-- need time to finish or to give their holds back, which busy sessions do after 50 ms: so
-- each wait is several times that, and longer the more looks there were, up to the moment
-- at which holders are ended.
CREATE FUNCTION wirefence.next_look(looks integer, preempt_at timestamptz, give_up timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pause CONSTANT bigint := 300 << least(greatest(looks - 1, 0), 2);
    until_preempt CONSTANT bigint := ceil(extract(epoch FROM preempt_at - clock_timestamp()) * 1000);
BEGIN
    IF until_preempt BETWEEN 1 AND pause * 3 / 2 OR looks = 0 AND until_preempt <= 0 THEN
        RETURN greatest(until_preempt, 1);
    END IF;
    RETURN greatest(least(pause, ceil(extract(epoch FROM give_up - clock_timestamp()) * 1000)), 1);
END
$$;

-- look_round tells a takeover who is in its way, as backends and as transactions, and
-- ends some of them. In stage 0 it ends nobody. From stage 1 on it ends backends that are idle,
-- unless it isn't allowed to. From stage 2 on, which is when preempt_after is over, it ends
-- those that it has seen in the same transaction one wait before, and in stage 3 all
-- backends that it has seen.
CREATE FUNCTION wirefence.look_round(resource text, token bigint, seen text[], stage integer) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holder record;
    present text[] := '{}';
BEGIN
    PERFORM pg_stat_clear_snapshot();
    FOR holder IN
        SELECT w.*, concat_ws(' ', w.pid, w.backend_start) AS backend, concat_ws(' ', w.pid, w.backend_start, w.virtualtransaction) AS transaction
        FROM wirefence.in_the_way(resource, token) AS w
    LOOP
        present := present || ARRAY[holder.backend, holder.transaction];
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

-- lock_exclusive takes the resource's lock exclusively for a token; null is
-- above all tokens. It waits in the lock's queue and looks round now and then: see
-- look_round and next_look. False means that the token was superseded and the
-- lock is not held. preempt_after says how long a takeover may take, and not the
-- session's lock_timeout; but where that is for ever, lock_timeout bounds it.
CREATE FUNCTION wirefence.lock_exclusive(resource text, token bigint, source text, preempt_after interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    preempt_at CONSTANT timestamptz := began + least(preempt_after, interval '24 days');
    give_up CONSTANT timestamptz := CASE WHEN preempt_after IS NOT NULL THEN preempt_at + interval '30 s'
        WHEN current_setting('lock_timeout')::interval > interval '0' THEN began + current_setting('lock_timeout')::interval END;
    granted boolean;
    circles integer := 0;
    looks integer := 0;
    stage integer := 1;
    seen text[];
BEGIN
    PERFORM wirefence.refuse_own_hold(resource);
    IF NOT pg_try_advisory_xact_lock(wirefence.lock_key(resource)) THEN
        IF EXISTS (SELECT FROM wirefence.lock_holders AS h
                   WHERE h.key = wirefence.lock_key(resource) AND h.pid = pg_backend_pid()) THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction was checked for resource ' || wirefence.quoted(resource)
                    || ' before, and other writers are open: waiting for them could deadlock.';
        END IF;
        seen := wirefence.look_round(resource, token, '{}', 0);
        LOOP
            SELECT q.circles, q.granted INTO circles, granted
            FROM wirefence.queue(resource, 'exclusive', wirefence.next_look(looks, preempt_at, give_up), circles) AS q;
            EXIT WHEN granted;
            IF wirefence.superseded(resource, token, source) THEN
                RETURN false;
            ELSIF clock_timestamp() > give_up AND preempt_after IS NULL THEN
                RAISE lock_not_available USING
                    MESSAGE = 'canceling statement due to lock timeout',
                    DETAIL = 'Older transactions hold resource ' || wirefence.quoted(resource) || ', and its preempt_after ends none.';
            ELSIF clock_timestamp() > give_up THEN
                RAISE lock_not_available USING
                    MESSAGE = 'could not take over resource ' || wirefence.quoted(resource),
                    DETAIL = 'Transactions that hold it did not end in time.',
                    HINT = 'See SELECT * FROM wirefence.status() and pg_locks for who holds it.';
            END IF;
            looks := looks + 1;
            IF clock_timestamp() >= preempt_at THEN
                stage := least(stage + 1, 3);
                looks := 1;
            END IF;
            seen := wirefence.look_round(resource, token, seen, stage);
        END LOOP;
    END IF;
    PERFORM wirefence.announce(resource, token);
    RETURN true;
END
$$;
