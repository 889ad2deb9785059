-- How writers and takeovers exclude each other. A writer with the current
-- token holds the advisory lock of its resource shared until its transaction
-- ends; whoever moves the token on holds it exclusively. Advisory locks are
-- queued fairly; row locks are not, and starve the takeover.
SET LOCAL search_path = pg_catalog, pg_temp;

-- lock_key is the key of a resource's advisory lock.
CREATE FUNCTION wirefence.lock_key(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN hashtextextended(resource COLLATE "C", 8604534342903230051);

-- lock_holders lists the transactions that hold an advisory lock, by key. A
-- prepared transaction has no pid.
CREATE VIEW wirefence.lock_holders AS
SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.pid, l.virtualtransaction,
       bool_or(l.mode = 'ExclusiveLock') AS exclusive
FROM pg_locks AS l
JOIN pg_database AS d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
GROUP BY 1, 2, 3;

-- announce publishes the token that an exclusive holder came with, as two more
-- advisory locks that carry its halves. Without it a stale waiter could take a
-- newer holder, whose row it can't see before the commit, for an older one and
-- end it. Shared holders need no announcement: theirs is the recorded token.
CREATE FUNCTION wirefence.announce(resource text, token bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_advisory_xact_lock_shared(hashtext('wirefence high ' || resource), (token >> 32)::integer),
           pg_advisory_xact_lock_shared(hashtext('wirefence low ' || resource), (token & 4294967295)::bit(32)::integer);
$$;

-- older_holders lists who holds the lock with a token lower than the given one;
-- a null token is above all.
CREATE FUNCTION wirefence.older_holders(resource text, token bigint)
RETURNS TABLE (pid integer, virtualtransaction text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT h.pid, h.virtualtransaction
    FROM wirefence.lock_holders AS h
    WHERE h.key = wirefence.lock_key(resource)
      AND h.pid IS DISTINCT FROM pg_backend_pid()
      AND (NOT h.exclusive OR token IS NULL OR token > (
            SELECT max(high.objid::bigint << 32 | low.objid::bigint)
            FROM pg_locks AS high
            JOIN pg_locks AS low USING (locktype, database, virtualtransaction, objsubid)
            WHERE high.locktype = 'advisory' AND high.objsubid = 2
              AND high.virtualtransaction = h.virtualtransaction
              AND high.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
              AND high.classid::bigint = hashtext('wirefence high ' || resource)::bigint & 4294967295
              AND low.classid::bigint = hashtext('wirefence low ' || resource)::bigint & 4294967295));
$$;

-- end_holder ends the backend of one holder and tells of it, or says what keeps it
-- from that and what an operator can do. Holders are known by the key of their lock
-- alone, and a name that has a given key can be computed: so that a client doesn't use
-- one to have holders of another resource ended, where several share a key only
-- issuers end any. That a backend is gone already is no news to
-- the client, hence client_min_messages.
CREATE FUNCTION wirefence.end_holder(resource text, holder_pid integer, holder_vxid text) RETURNS void
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
            MESSAGE = 'the holder of resource ' || wirefence.quoted(resource) || ' is not ended, for it may hold another',
            DETAIL = 'Resource ' || wirefence.quoted(other) || ' has the same lock.',
            HINT = 'Only issuers end it then. Choose another name.';
    END IF;
    SELECT a.usename AS login, a.application_name AS application INTO ended FROM pg_stat_activity AS a WHERE a.pid = holder_pid;
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
-- ever. False means that the time is over.
--
-- A check takes its locks in order, and where all wait in order none wait in a
-- circle. Several checks in one transaction may not, nor several seals. PostgreSQL
-- ends a circle by failing whoever is the first to look. Here that is not for those
-- who wait in order: they wait again, and who is out of order gives way. It queues
-- anew all the time, as PostgreSQL looks only once in each wait, deadlock_timeout
-- after its begin. Locks of the application's own may be part of a circle, too, and
-- who waits for them may have looked already: so nobody waits again for ever.
CREATE FUNCTION wirefence.queue(resource text, exclusive boolean, milliseconds bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    last_look CONSTANT integer := 10;
    turn CONSTANT bigint := least(ceil(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 2000), 2147483647);
    over CONSTANT timestamptz := CASE WHEN milliseconds > 0 THEN clock_timestamp() + milliseconds * interval '1 ms' END;
    remaining bigint := milliseconds;
    circles integer := 0;
    astray boolean; -- null until the first turn is over
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', CASE
                WHEN astray IS FALSE OR remaining BETWEEN 1 AND turn THEN remaining ELSE turn END::text, true);
            IF exclusive THEN
                PERFORM pg_advisory_xact_lock(wirefence.lock_key(resource));
            ELSE
                PERFORM pg_advisory_xact_lock_shared(wirefence.lock_key(resource));
            END IF;
            RETURN true;
        EXCEPTION
            WHEN lock_not_available THEN NULL;
            WHEN deadlock_detected THEN circles := circles + 1;
        END;
        astray := coalesce(astray, wirefence.out_of_order(resource));
        IF circles > last_look OR astray AND circles > 0 THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'This transaction waited for resource ' || wirefence.quoted(resource)
                    || ', and others for what it had before: a deadlock.',
                HINT = 'Try the transaction again. With a fence that names all its resources from its first write on, it waits for them in order.';
        END IF;
        IF over IS NOT NULL THEN
            remaining := ceil(extract(epoch FROM over - clock_timestamp()) * 1000);
            IF remaining <= 0 THEN
                RETURN false;
            END IF;
        END IF;
    END LOOP;
END
$$;

-- await_shared waits for the resource's lock, shared, for as long as the client's
-- lock_timeout lets it.
CREATE FUNCTION wirefence.await_shared(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT wirefence.queue(resource, false, ceil(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint) THEN
        RAISE lock_not_available USING
            MESSAGE = 'canceling statement due to lock timeout',
            DETAIL = 'Resource ' || wirefence.quoted(resource) || ' is being taken over.';
    END IF;
END
$$;

-- lock_exclusive takes the resource's lock exclusively for a token; null is
-- above all tokens. After preempt_after it ends the older transactions in its
-- way, but only those that it has seen there one wait before: each timeout
-- gives up the place in the queue, and whoever stood behind comes in then and
-- gets a moment to finish. False means that the token was superseded and the
-- lock is not held. preempt_after says how long a takeover may take, and not the
-- session's lock_timeout; but where that is for ever, lock_timeout bounds it.
CREATE FUNCTION wirefence.lock_exclusive(resource text, token bigint, source text, preempt_after interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    longest CONSTANT interval := least(preempt_after, interval '24 days'); -- what lock_timeout can hold
    patience bigint := CASE WHEN preempt_after IS NULL THEN ceil(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)
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
        WHILE NOT wirefence.queue(resource, true, patience) LOOP
            IF wirefence.superseded(resource, token, source) THEN
                RETURN false;
            ELSIF preempt_after IS NULL THEN
                RAISE lock_not_available USING
                    MESSAGE = 'canceling statement due to lock timeout',
                    DETAIL = 'Older transactions hold resource ' || wirefence.quoted(resource) || ', and its preempt_after ends none.';
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
