-- Detection of stored code that sets the session variable or releases a hold: the text of the
-- client does not show that.
SET LOCAL search_path = pg_catalog, pg_temp;

-- stored_code_interferes reports whether a function, or an expression of a view, rule,
-- default, constraint, policy, trigger or domain, names wirefence.token or releases advisory
-- locks. In doubt it returns true. It cannot find code that builds such a name at run time.
--
-- A text is searched in lower case. PostgreSQL stores an expression as a tree, with functions
-- by number and literals as bytes. In a tree any call of set_config counts, and so does the
-- name of the variable, each letter of which may be one of two bytes. Of DISCARD, only
-- DISCARD ALL releases locks.
CREATE FUNCTION wirefence.stored_code_interferes() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = on SET enable_hashjoin = on SET jit = off
AS $$
    WITH own AS MATERIALIZED (
        SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = 'wirefence'
    ), dangerous AS MATERIALIZED (
        SELECT array_agg(p.oid) AS oids, array_agg(concat('funcid ', p.oid, ' ')) AS calls FROM pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND (p.proname = 'set_config' OR starts_with(p.proname, 'pg_advisory_unlock'))
    ), texts AS (
        SELECT p.prosrc AS text FROM pg_proc AS p
        WHERE p.oid >= 16384 AND p.prokind <> 'a' AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT p.proconfig::text FROM pg_proc AS p
        WHERE p.oid >= 16384 AND p.proconfig IS NOT NULL AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT encode(t.tgargs, 'escape') FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgnargs > 0 AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
    ), trees AS (
        SELECT p.prosqlbody AS tree FROM pg_proc AS p
        WHERE p.oid >= 16384 AND p.prosqlbody IS NOT NULL AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT p.proargdefaults FROM pg_proc AS p
        WHERE p.oid >= 16384 AND p.proargdefaults IS NOT NULL AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT t.tree FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class, LATERAL (VALUES (r.ev_action), (r.ev_qual)) AS t(tree)
        WHERE r.oid >= 16384 AND c.relnamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT d.adbin FROM pg_attrdef AS d JOIN pg_class AS c ON c.oid = d.adrelid
        WHERE c.relnamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT c.conbin FROM pg_constraint AS c
        WHERE c.conbin IS NOT NULL AND c.oid >= 16384 AND c.connamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT t.tree FROM pg_policy AS p, LATERAL (VALUES (p.polqual), (p.polwithcheck)) AS t(tree)
        UNION ALL
        SELECT t.tgqual FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgqual IS NOT NULL AND p.pronamespace <> ALL (ARRAY(SELECT own.oid FROM own))
        UNION ALL
        SELECT t.typdefaultbin FROM pg_type AS t WHERE t.typdefaultbin IS NOT NULL AND t.oid >= 16384
    )
    SELECT EXISTS (
        SELECT FROM (SELECT lower(t.text COLLATE "C") AS text FROM texts AS t OFFSET 0) AS t
        WHERE strpos(t.text, 'advisory_unlock') > 0
           OR strpos(t.text, 'wirefence') > 0 AND t.text ~ 'wirefence"?[[:space:]]*[.][[:space:]]*"?token'
           OR strpos(t.text, 'discard') > 0 AND t.text ~ 'discard[[:space:]]+all'
    ) OR EXISTS (
        SELECT FROM (SELECT t.tree::text COLLATE "C" AS tree FROM trees AS t OFFSET 0) AS t, dangerous AS d
        WHERE EXISTS (SELECT FROM unnest(d.calls) AS c(call) WHERE strpos(t.tree, c.call) > 0)
           OR (strpos(t.tree, ' 46 116 ') > 0 OR strpos(t.tree, ' 46 84 ') > 0)
              AND t.tree ~ ' (119|87) (105|73) (114|82) (101|69) (102|70) (101|69) (110|78) (99|67) (101|69) 46 (116|84) (111|79) (107|75) (101|69) (110|78) '
    ) OR EXISTS (
        SELECT FROM pg_operator AS o, dangerous AS d WHERE o.oid >= 16384 AND o.oprcode = ANY (d.oids)
        UNION ALL
        SELECT FROM pg_cast AS c, dangerous AS d WHERE c.oid >= 16384 AND c.castfunc = ANY (d.oids)
        UNION ALL
        SELECT FROM pg_aggregate AS a, dangerous AS d
        WHERE a.aggfnoid >= 16384 AND d.oids && ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn,
              a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]
    )
$$;

GRANT EXECUTE ON FUNCTION wirefence.stored_code_interferes() TO PUBLIC;
