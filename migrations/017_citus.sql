-- Citus: by default tokens and locks are those of the coordinator, to which all fenced clients
-- connect, and the schema stays there. With wirefence migrate --citus nodes each node has the
-- schema, and its tokens and locks are those of its own clients: a transaction holds its locks on
-- the node that coordinates it, which knows when all nodes have committed. The coordinator grants,
-- and no grant counts before each worker has recorded it.
SET LOCAL search_path = pg_catalog, pg_temp;

-- propagate sets whether Citus sends to workers what the transaction creates, and returns what was
-- set before. Without Citus it returns null and sets nothing, as it does for null.
CREATE FUNCTION wirefence.propagate(wanted text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was CONSTANT text := current_setting('citus.enable_ddl_propagation', true);
BEGIN
    IF was <> '' AND wanted IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', wanted, true);
    END IF;
    RETURN was;
END
$$;

-- is_distributed reports whether Citus manages a table: its rows are on other nodes, or may come
-- to be there.
CREATE FUNCTION wirefence.is_distributed(target regclass) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found boolean := false;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $1)' INTO found USING target;
    END IF;
    RETURN found;
END
$$;

-- recover_citus carries out what was confirmed: it commits on other nodes what this one has
-- committed. With asking it returns null only if nothing is left to be carried out on any node, and
-- otherwise why something may be: a node does not answer, or runs what no session of the node that
-- sent it waits for. Such a session has ended, as those in the argument have, which
-- pg_stat_activity may still show for a moment; or it has given up a connection, and is idle by
-- now, or in a later statement or transaction. The nodes tell ages, not times, since their clocks
-- may differ. Where the coordinator has the tokens, what other nodes sent does not matter.
--
-- Only a superuser may do that, so where there is Citus, wirefence migrate gives this function to
-- the owner of the extension.
CREATE FUNCTION wirefence.recover_citus(ended integer[], asking boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
DECLARE
    sessions CONSTANT text := $query$
        SELECT jsonb_object_agg(a.pid, jsonb_build_object('query', CASE a.state WHEN 'active' THEN extract(epoch FROM clock_timestamp() - a.query_start) END,
                                                          'xact', extract(epoch FROM clock_timestamp() - a.xact_start)))
        FROM pg_catalog.pg_stat_activity AS a
        WHERE a.datname = pg_catalog.current_database() $query$;
    told jsonb;
    here text;
    mine jsonb;
BEGIN
    EXECUTE 'SELECT pg_catalog.recover_prepared_transactions()';
    PERFORM pg_stat_clear_snapshot();
    IF NOT asking THEN
        RETURN (SELECT 'a session that was ended is still there' FROM pg_stat_activity AS a WHERE a.pid = ANY (ended) LIMIT 1);
    END IF;
    EXECUTE $query$
        SELECT jsonb_object_agg(n.nodeid, jsonb_build_object('node', concat(n.nodename, ':', n.nodeport), 'success', r.success, 'result', r.result)),
               coalesce((SELECT l.nodeid FROM pg_catalog.pg_dist_local_group AS g JOIN pg_catalog.pg_dist_node AS l USING (groupid) WHERE l.noderole = 'primary'),
                        pg_catalog.citus_backend_gpid() / 10000000000)
        FROM pg_catalog.run_command_on_all_nodes(concat($command$
            SELECT jsonb_build_object('sent', jsonb_agg(jsonb_build_object('gpid', substring(a.application_name FROM '[0-9]+$'), 'active', a.state = 'active', 'age',
                                                        extract(epoch FROM clock_timestamp() - CASE a.state WHEN 'active' THEN a.query_start ELSE a.xact_start END))),
                                      'sessions', ($command$, $1, $command$))
            FROM pg_catalog.pg_stat_activity AS a
            WHERE a.application_name ~ '^citus_internal gpid=[0-9]+$' AND a.datname = pg_catalog.current_database() $command$)) AS r
        JOIN pg_catalog.pg_dist_node AS n USING (nodeid) $query$ INTO told, here USING sessions;
    EXECUTE sessions INTO mine;
    mine := mine - ended::text[];
    RETURN (
        SELECT string_agg(concat('node ', t.value ->> 'node', CASE WHEN (t.value ->> 'success')::boolean THEN ' still runs a statement for which no session waits' ELSE ': ' || (t.value ->> 'result') END), ', ')
        FROM jsonb_each(told) AS t
        WHERE NOT (t.value ->> 'success')::boolean OR EXISTS (
            SELECT FROM jsonb_array_elements(CASE WHEN (t.value ->> 'success')::boolean THEN nullif((t.value ->> 'result')::jsonb -> 'sent', 'null') END) AS b,
                LATERAL (SELECT ((b ->> 'gpid')::bigint / 10000000000)::text AS node, ((b ->> 'gpid')::bigint % 10000000000)::text AS pid) AS g,
                LATERAL (SELECT CASE WHEN g.node = here THEN mine ELSE ((told -> g.node ->> 'result')::jsonb) -> 'sessions' END -> g.pid AS session) AS a
            WHERE (g.node = here OR wirefence.citus_group() IS NOT NULL AND g.node <> '99999999')
              AND (a.session IS NULL
                   OR (b ->> 'age')::double precision > coalesce((a.session ->> CASE WHEN (b ->> 'active')::boolean THEN 'query' ELSE 'xact' END)::double precision, 0))));
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END
$$;

-- settle_citus returns when all that former holders of a resource have sent to other nodes has been
-- carried out there or never will be. The caller has the lock of the resource. Without asking it
-- settles only what is known here.
--
-- A commit on several nodes is prepared on each, then committed at the coordinator, and then on
-- each. If a node can't be reached for the last step, the client gets its confirmation all the
-- same, and Citus commits there once it can. pg_dist_transaction has the commits for which that
-- may be so. Its rows are seen only in READ COMMITTED, by a snapshot behind the lock.
--
-- A statement that writes to one shard outside of a block is committed by its worker alone. If
-- the session at the coordinator is ended meanwhile, and the worker can't be told, the statement
-- goes on.
CREATE FUNCTION wirefence.settle_citus(resource text, asking boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ended CONSTANT integer[] := ARRAY(SELECT (e ->> 'pid')::integer FROM jsonb_array_elements(coalesce(nullif(current_setting('wirefence.ended', true), ''), '[]')::jsonb) AS e);
    coordinates boolean;
    unsettled text[];
    reason text;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_local_group') IS NULL THEN
        RETURN;
    END IF;
    EXECUTE 'SELECT bool_and(g.groupid = 0) FROM pg_catalog.pg_dist_local_group AS g' INTO coordinates;
    IF coordinates IS FALSE AND (wirefence.citus_group() IS NULL OR current_setting('wirefence.recording', true) IS DISTINCT FROM 'on') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tokens cannot be granted on a worker of Citus',
            DETAIL = 'The coordinator grants tokens, and counts the uses of those that are for one transaction.',
            HINT = 'Connect to the coordinator.';
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE feature_not_supported USING
            MESSAGE = 'cannot take over a resource in isolation level ' || current_setting('transaction_isolation'),
            DETAIL = 'There is Citus in this database. The snapshot of the transaction may not show a commit that a worker has still to carry out.',
            HINT = 'Use READ COMMITTED.';
    END IF;
    EXECUTE 'SELECT array_agg(t.gid) FROM pg_catalog.pg_dist_transaction AS t' INTO unsettled;
    IF unsettled IS NULL AND ended = '{}' AND NOT asking THEN
        RETURN;
    END IF;
    FOR attempt IN 1..20 LOOP
        reason := wirefence.recover_citus(ended, asking);
        EXECUTE 'SELECT array_agg(t.gid) FROM pg_catalog.pg_dist_transaction AS t WHERE t.gid = ANY ($1)' INTO unsettled USING unsettled;
        IF unsettled IS NULL AND reason IS NULL THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(least(attempt, 10) * 0.01);
    END LOOP;
    RAISE lock_not_available USING
        MESSAGE = 'could not take over resource ' || wirefence.quote_name(resource),
        DETAIL = coalesce('Citus: ' || reason, cardinality(unsettled) || ' commits are confirmed to their clients, but a worker may still have to carry them out') || '.'
            || wirefence.describe_ended(),
        HINT = CASE WHEN (SELECT r.rolsuper FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = 'wirefence.recover_citus(integer[],boolean)'::regprocedure)
            THEN 'Try again once all nodes answer the coordinator. A node that is lost for good has to be removed, or replaced.'
            ELSE 'Let a superuser run wirefence migrate, which gives him the function wirefence.recover_citus.' END;
END
$$;

-- grant_on_nodes makes this node one of those that have the tokens. There is no way back but
-- wirefence uninstall, on the workers first. What the node had recorded as a worker before it was
-- removed and added again is void, because it is another group then.
CREATE FUNCTION wirefence.grant_on_nodes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM wirefence.row_classes) THEN
        RAISE feature_not_supported USING MESSAGE = 'rows cannot judge where each node of Citus has the tokens', HINT = 'wirefence rows list shows the classes: drop them first.';
    END IF;
    CREATE OR REPLACE FUNCTION wirefence.citus_group() RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    AS 'BEGIN
            IF to_regclass(''pg_catalog.pg_dist_local_group'') IS NOT NULL THEN
                RETURN (SELECT CASE g.groupid WHEN 0 THEN '''' ELSE concat(''/'', g.groupid) END FROM pg_dist_local_group AS g);
            END IF;
            RETURN NULL;
        END';
    CREATE OR REPLACE FUNCTION wirefence.is_here(pinned_to text) RETURNS boolean -- the group of an open session's node may change
    LANGUAGE sql
    RETURN pinned_to = wirefence.identity();
END
$$;

-- record_grant records at a worker what the coordinator is about to commit. Like a seal it waits
-- for transactions with older tokens. It returns the last token, which is higher than that of the
-- coordinator if an attempt to grant it ended before the coordinator's commit. Of a version it
-- records nothing: unready_workers asks whether it would.
CREATE FUNCTION wirefence.record_grant(granted jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new CONSTANT wirefence.resource_locks := jsonb_populate_record(NULL::wirefence.resource_locks, granted);
    known wirefence.resource_locks;
    version CONSTANT integer := (SELECT v.version FROM wirefence.applied_version AS v);
BEGIN
    IF granted ? 'version' THEN
        IF version <> (granted ->> 'version')::integer THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('its schema has version %s, not %s', version, granted ->> 'version');
        END IF;
        RETURN 0;
    END IF;
    PERFORM set_config('wirefence.recording', 'on', true);
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = new.resource_id;
    IF known.last_token > new.last_token THEN
        RETURN known.last_token;
    ELSIF known.last_token IS DISTINCT FROM new.last_token OR known.sealed_under IS DISTINCT FROM wirefence.identity() THEN
        PERFORM wirefence.lock_exclusive(new.resource_id, NULL, NULL, new.preempt_after);
    END IF;
    PERFORM wirefence.require_durable_commit();
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, source, must_name_source, holder, granted_at, sealed_at, updated_at,
                                               advance, reuse, preempt_after, mode, failover, sealed_under)
    VALUES (new.resource_id, new.last_token, new.source, new.must_name_source, new.holder, new.granted_at, new.sealed_at, new.updated_at,
            new.advance, new.reuse, (granted ->> 'keep_preempt_after')::interval, new.mode, new.failover, wirefence.identity())
    ON CONFLICT (resource_id) DO UPDATE SET
        last_token = excluded.last_token, source = excluded.source, must_name_source = excluded.must_name_source, holder = excluded.holder,
        granted_at = excluded.granted_at, sealed_at = excluded.sealed_at, updated_at = excluded.updated_at, advance = excluded.advance,
        reuse = excluded.reuse, preempt_after = excluded.preempt_after, mode = excluded.mode, failover = excluded.failover,
        sealed_under = excluded.sealed_under
    WHERE l.last_token <= excluded.last_token;
    RETURN (SELECT l.last_token FROM wirefence.resource_locks AS l WHERE l.resource_id = new.resource_id);
END
$$;

-- tell_workers has every worker record a grant. It returns the highest token that one of them has, and
-- why others recorded none. Only a superuser may ask all workers, so it belongs to him as
-- recover_citus does.
CREATE FUNCTION wirefence.tell_workers(granted jsonb, OUT highest bigint, OUT failed text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
BEGIN
    EXECUTE $query$
        SELECT max(w.result::bigint) FILTER (WHERE w.success),
               string_agg(concat('Worker ', w.nodename, ':', w.nodeport, ': ', w.result, '.'), ' ') FILTER (WHERE w.success IS NOT TRUE)
        FROM (SELECT r.nodename, r.nodeport, r.success, r.result FROM pg_catalog.run_command_on_workers(format('SELECT wirefence.record_grant(%L)', $1)) AS r
              UNION ALL
              SELECT n.nodename, n.nodeport, false, 'it is disabled' FROM pg_catalog.pg_dist_node AS n WHERE n.noderole = 'primary' AND NOT n.isactive) AS w $query$
    INTO highest, failed USING granted;
END
$$;

-- record_on_workers is the trigger that has the workers record what changes at the coordinator,
-- ahead of its commit. A worker records nothing else. What is left of preempt_after bounds the
-- takeover there; a revocation ends holders at once.
CREATE FUNCTION wirefence.record_on_workers() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    uses CONSTANT text[] := '{used_token,used_xid,updated_at}';
    left_over CONSTANT interval := CASE WHEN new.granted_at IS NULL THEN interval '0'
        WHEN new.preempt_after IS NOT NULL THEN greatest(new.preempt_after - (clock_timestamp() - statement_timestamp()), interval '0') END;
    told record;
BEGIN
    IF wirefence.citus_group() <> '' THEN
        IF current_setting('wirefence.recording', true) IS DISTINCT FROM 'on' THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = 'resources cannot be changed on a worker of Citus',
                HINT = 'Connect to the coordinator.';
        END IF;
    ELSIF TG_OP = 'INSERT' OR to_jsonb(new) - uses <> to_jsonb(old) - uses THEN
        SELECT * INTO told
        FROM wirefence.tell_workers(to_jsonb(new) || jsonb_build_object('preempt_after', left_over, 'keep_preempt_after', new.preempt_after));
        IF told.failed IS NOT NULL THEN
            RAISE lock_not_available USING
                MESSAGE = 'could not take over resource ' || wirefence.quote_name(new.resource_id),
                DETAIL = told.failed,
                HINT = 'Try again once all workers answer. On a worker that has no schema yet, run wirefence migrate --citus nodes.';
        END IF;
        PERFORM wirefence.settle_citus(new.resource_id, true);
        UPDATE wirefence.resource_locks AS l SET last_token = told.highest, holder = NULL, granted_at = NULL
        WHERE l.resource_id = new.resource_id AND l.last_token < told.highest;
    END IF;
    RETURN NULL;
END
$$;

-- unready_workers tells at the coordinator why workers would record no grant. It is null if all would.
CREATE FUNCTION wirefence.unready_workers() RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN (SELECT t.failed FROM wirefence.applied_version AS v, LATERAL wirefence.tell_workers(to_jsonb(v)) AS t WHERE wirefence.citus_group() = '');

-- at_coordinator calls a function of the issuer at the coordinator, and returns its answer or raises
-- its error. Like recover_citus it belongs to a superuser. Its arguments are literals there. The
-- takeover comes back as a session of its own, so it would wait for the caller's locks.
CREATE FUNCTION wirefence.at_coordinator(function text, VARIADIC arguments text[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    succeeded boolean;
    result text;
    error jsonb;
BEGIN
    IF function IN ('seal', 'acquire_hashed', 'revoke') AND EXISTS (
        SELECT FROM wirefence.lock_holders AS h WHERE h.key = wirefence.lock_key(arguments[1]) AND h.pid = pg_backend_pid()) THEN
        RAISE object_in_use USING
            MESSAGE = 'this session holds resource ' || wirefence.quote_name(arguments[1]) || ', which it is to take over',
            DETAIL = 'A takeover cannot wait for its own session.',
            HINT = 'Call it in another session, or outside of a fenced transaction.';
    END IF;
    EXECUTE 'SELECT c.success, c.result FROM pg_catalog.run_command_on_coordinator(format(''SELECT wirefence.answer_worker(%L, %L, %L)'', $1, $2, $3)) AS c'
    INTO succeeded, result USING function, arguments, current_setting('wirefence.reason', true);
    IF succeeded IS NOT TRUE THEN
        RAISE lock_not_available USING
            MESSAGE = 'the coordinator of Citus does not answer',
            DETAIL = coalesce(result, 'It is not known here.'),
            HINT = 'Try again once it does.';
    END IF;
    error := result::jsonb -> 'error';
    IF error IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = error ->> 'state', MESSAGE = error ->> 'message', DETAIL = error ->> 'detail', HINT = error ->> 'hint', SCHEMA = error ->> 'schema';
    END IF;
    RETURN result::jsonb -> 'answer';
END
$$;

-- answer_worker is the coordinator's part of at_coordinator. Only that superuser calls it.
CREATE FUNCTION wirefence.answer_worker(function text, arguments text[], reason text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer jsonb;
    message text;
    detail text;
    hint text;
    counted text;
BEGIN
    PERFORM set_config('wirefence.reason', reason, true);
    EXECUTE format('SELECT to_jsonb(f) FROM wirefence.%I(%s) AS f', function,
                   (SELECT string_agg(quote_nullable(a.value), ', ' ORDER BY a.place) FROM unnest(arguments) WITH ORDINALITY AS a(value, place))) INTO answer;
    RETURN jsonb_build_object('answer', answer);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, counted = SCHEMA_NAME;
    RETURN jsonb_build_object('error', jsonb_build_object('state', SQLSTATE, 'message', message, 'detail', detail, 'hint', hint, 'schema', counted));
END
$$;

CREATE TRIGGER record_on_workers AFTER INSERT OR UPDATE ON wirefence.resource_locks
FOR EACH ROW WHEN (wirefence.citus_group() IS NOT NULL) EXECUTE FUNCTION wirefence.record_on_workers();

GRANT EXECUTE ON FUNCTION wirefence.propagate(text), wirefence.is_distributed(regclass) TO PUBLIC;
GRANT EXECUTE ON FUNCTION wirefence.unready_workers() TO wirefence_issuer;
