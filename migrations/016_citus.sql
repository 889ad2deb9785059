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
-- committed. It returns why it can't, null otherwise, also where a worker doesn't answer. Only a
-- superuser may do that, so where there is Citus, wirefence migrate gives this function to the
-- owner of the extension.
CREATE FUNCTION wirefence.recover_citus() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_min_messages = error
AS $$
BEGIN
    EXECUTE 'SELECT pg_catalog.recover_prepared_transactions()';
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END
$$;

-- settle_citus returns when what the former holders of a resource have committed is visible. The
-- caller has the lock of the resource.
--
-- A commit on several nodes is prepared on each, then committed at the coordinator, and then on
-- each. If a node can't be reached for the last step, the client gets its confirmation all the
-- same, and Citus commits there once it can. pg_dist_transaction has the commits for which that
-- may be so. Their rows are seen only in READ COMMITTED, by a snapshot behind the lock.
CREATE FUNCTION wirefence.settle_citus(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
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
    FOR attempt IN 0..20 LOOP
        EXECUTE 'SELECT array_agg(t.gid) FROM pg_catalog.pg_dist_transaction AS t WHERE $1 IS NULL OR t.gid = ANY ($1)' INTO unsettled USING unsettled;
        IF unsettled IS NULL THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(least(attempt, 10) * 0.01);
        reason := wirefence.recover_citus();
    END LOOP;
    RAISE lock_not_available USING
        MESSAGE = 'could not take over resource ' || wirefence.quote_name(resource),
        DETAIL = cardinality(unsettled) || ' commits of Citus are confirmed to their clients, but a worker may still have to carry them out.' || coalesce(' Citus reports: ' || reason, ''),
        HINT = CASE WHEN (SELECT r.rolsuper FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = 'wirefence.recover_citus()'::regprocedure)
            THEN 'A worker does not answer the coordinator, or a commit takes long. Try again once it does.'
            ELSE 'Let a superuser run wirefence migrate, which gives him the function wirefence.recover_citus().' END;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.propagate(text) TO PUBLIC;
