-- Citus: tokens and locks are those of the coordinator, to which all fenced clients connect. The
-- schema stays there.
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

-- recover_citus carries out what was confirmed: it commits on workers what the coordinator has
-- committed. It returns null if nothing is left to be carried out on any node, and otherwise why
-- something may be: a node does not answer, or runs what no session of the coordinator's waits
-- for. Such a session has ended, as those in the argument have, which pg_stat_activity may still
-- show for a moment; or it has given up a connection, and is idle by now, or in a later statement
-- or transaction. The workers tell ages, not times, since their clocks may differ.
--
-- Only a superuser may do that, so where there is Citus, wirefence migrate gives this function to
-- the owner of the extension.
CREATE FUNCTION wirefence.recover_citus(ended integer[]) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
DECLARE
    told jsonb;
    here bigint;
BEGIN
    EXECUTE 'SELECT pg_catalog.recover_prepared_transactions()';
    EXECUTE $query$
        SELECT jsonb_agg(jsonb_build_object('node', concat(n.nodename, ':', n.nodeport), 'success', r.success, 'result', r.result)),
               pg_catalog.citus_backend_gpid() / 10000000000
        FROM pg_catalog.run_command_on_all_nodes($command$
            SELECT coalesce(jsonb_agg(jsonb_build_object('gpid', substring(a.application_name FROM '[0-9]+$'), 'active', a.state = 'active', 'age',
                                                         extract(epoch FROM clock_timestamp() - CASE a.state WHEN 'active' THEN a.query_start ELSE a.xact_start END))), '[]')
            FROM pg_catalog.pg_stat_activity AS a
            WHERE a.application_name ~ '^citus_internal gpid=[0-9]+$' AND a.datname = pg_catalog.current_database() $command$) AS r
        JOIN pg_catalog.pg_dist_node AS n USING (nodeid) $query$ INTO told, here;
    PERFORM pg_stat_clear_snapshot();
    RETURN (
        SELECT string_agg(concat('node ', t ->> 'node', CASE WHEN (t ->> 'success')::boolean THEN ' still runs a statement for which no session waits' ELSE ': ' || (t ->> 'result') END), ', ')
        FROM jsonb_array_elements(told) AS t
        WHERE NOT (t ->> 'success')::boolean OR EXISTS (
            SELECT FROM jsonb_array_elements(CASE WHEN (t ->> 'success')::boolean THEN (t ->> 'result')::jsonb END) AS b
            LEFT JOIN pg_stat_activity AS a ON a.pid = (b ->> 'gpid')::bigint % 10000000000
            WHERE (b ->> 'gpid')::bigint / 10000000000 = here
              AND (a.pid IS NULL OR a.pid = ANY (ended)
                   OR (b ->> 'age')::double precision > coalesce(extract(epoch FROM clock_timestamp() - CASE
                          WHEN NOT (b ->> 'active')::boolean THEN a.xact_start WHEN a.state = 'active' THEN a.query_start END), 0))));
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END
$$;

-- settle_citus returns when all that former holders of a resource have sent to workers has been
-- carried out there or never will be. The caller has the lock of the resource.
--
-- A commit on several nodes is prepared on each, then committed at the coordinator, and then on
-- each. If a node can't be reached for the last step, the client gets its confirmation all the
-- same, and Citus commits there once it can. pg_dist_transaction has the commits for which that
-- may be so. Its rows are seen only in READ COMMITTED, by a snapshot behind the lock.
--
-- A statement that writes to one shard outside of a block is committed by its worker alone. If
-- the session at the coordinator is ended meanwhile, and the worker can't be told, the statement
-- goes on.
CREATE FUNCTION wirefence.settle_citus(resource text) RETURNS void
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
    IF coordinates IS FALSE THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'tokens cannot be granted on a worker of Citus',
            DETAIL = 'The coordinator has the tokens. A token that is recorded here would not be compared with them.',
            HINT = 'Connect to the coordinator.';
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE feature_not_supported USING
            MESSAGE = 'cannot take over a resource in isolation level ' || current_setting('transaction_isolation'),
            DETAIL = 'There is Citus in this database. The snapshot of the transaction may not show a commit that a worker has still to carry out.',
            HINT = 'Use READ COMMITTED.';
    END IF;
    EXECUTE 'SELECT array_agg(t.gid) FROM pg_catalog.pg_dist_transaction AS t' INTO unsettled;
    FOR attempt IN 1..20 LOOP
        reason := wirefence.recover_citus(ended);
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
        HINT = CASE WHEN (SELECT r.rolsuper FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = 'wirefence.recover_citus(integer[])'::regprocedure)
            THEN 'Try again once all nodes answer the coordinator. A node that is lost for good has to be removed, or replaced.'
            ELSE 'Let a superuser run wirefence migrate, which gives him the function wirefence.recover_citus.' END;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.propagate(text) TO PUBLIC;
