-- Detection of stored code that sets the session variable, releases a hold, or replaces a
-- check: the text of the client does not show that.
SET LOCAL search_path = pg_catalog, pg_temp;

-- without_comments returns code of SQL or PL/pgSQL in lower case without its comments. Literals
-- stay as they are, because EXECUTE may run them. Where the end of a literal depends on
-- standard_conforming_strings, all comments stay.
CREATE FUNCTION wirefence.without_comments(code text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    token text;
    previous text := '';
    kept text[] := '{}';
    inside text := ''; -- --, /*, a quote or a dollar quote; empty outside of all
    depth integer := 0;
    escapes boolean;
BEGIN
    FOR token IN SELECT m[1] FROM regexp_matches(lower(code COLLATE "C"), E'(/[*]|[*]/|--|\n|''|"|[$](?:[a-z_][a-z0-9_]*)?[$]|\\\\.|[^-/*\n''"$\\\\]+|.)', 'g') AS m LOOP
        IF inside = '--' THEN
            CONTINUE WHEN token <> E'\n';
            inside := '';
        ELSIF inside = '/*' THEN
            depth := depth + CASE token WHEN '/*' THEN 1 WHEN '*/' THEN -1 ELSE 0 END;
            CONTINUE WHEN depth > 0;
            inside := '';
            token := ' ';
        ELSIF inside <> '' THEN
            IF token = inside THEN
                inside := '';
            ELSIF token = E'\\''' AND inside = '''' AND NOT escapes THEN
                RETURN lower(code COLLATE "C");
            END IF;
        ELSIF token IN ('--', '/*') THEN
            inside := token;
            depth := 1;
            CONTINUE;
        ELSIF token IN ('''', '"') OR token ~ '^[$].*[$]$' THEN
            inside := token;
            escapes := previous ~ '(^|[^a-z0-9_$])e$';
        END IF;
        kept := kept || token;
        previous := token;
    END LOOP;
    RETURN array_to_string(kept, '');
END
$$;

-- gap returns a regular expression for white space or a comment.
CREATE FUNCTION wirefence.gap() RETURNS text
LANGUAGE sql IMMUTABLE
RETURN '([[:space:]]|/[*]([^*]|[*]+[^*/])*[*]+/|--[^' || chr(10) || ']*' || chr(10) || ')';

-- names_interference reports whether a text in lower case has one of the names that
-- stored_code_interferes looks for. The words of a name may be apart by white space and
-- comments.
CREATE FUNCTION wirefence.names_interference(code text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN strpos(code, 'pg_advisory_unlock_all') > 0 OR strpos(code, 'pg_advisory_unlock_shared') > 0
    OR strpos(code, 'proxy_hold') > 0 OR strpos(code, 'proxy_unhold') > 0
    OR strpos(code, 'wirefence') > 0 AND code ~ replace('wirefence"?GAP*[.]GAP*"?token|(prepare|deallocate)GAP+(prepareGAP+)?"?_wirefence', 'GAP', wirefence.gap())
    OR strpos(code, 'discard') > 0 AND code ~ replace('discardGAP+all', 'GAP', wirefence.gap());

-- stored_code_interferes reports whether a function, or an expression of a view, rule,
-- default, constraint, policy, trigger, domain or statistics object, names wirefence.token,
-- what releases the locks of others, a function for the hold of a proxy, or a prepared
-- statement of a proxy. In doubt it returns true. It cannot find code that builds such a name
-- at run time. Objects in temporary schemas do not count: only their own session can use
-- them, and its proxy has seen their text.
--
-- pg_advisory_unlock releases exclusive locks only, which a hold is not. Of DISCARD, only
-- DISCARD ALL releases locks. PostgreSQL stores an expression as a tree, with functions by
-- number and literals as bytes. In a tree any call of set_config counts, and so does the name
-- of the variable, each letter of which may be one of two bytes.
CREATE FUNCTION wirefence.stored_code_interferes() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = on SET enable_hashjoin = on SET jit = off
AS $$
    WITH skipped AS MATERIALIZED (
        SELECT array_agg(n.oid) AS schemas FROM pg_namespace AS n WHERE n.nspname = 'wirefence' OR starts_with(n.nspname, 'pg_temp_')
    ), dangerous AS MATERIALIZED (
        SELECT array_agg(p.oid) AS oids, array_agg(concat('funcid ', p.oid, ' ')) AS calls FROM pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN ('set_config', 'pg_advisory_unlock_all', 'pg_advisory_unlock_shared')
           OR p.pronamespace = 'wirefence'::regnamespace AND p.proname IN ('proxy_hold', 'proxy_unhold')
    ), functions AS MATERIALIZED (
        SELECT p.* FROM pg_proc AS p, skipped AS s WHERE p.oid >= 16384 AND p.pronamespace <> ALL (s.schemas)
    ), relations AS MATERIALIZED (
        SELECT c.oid FROM pg_class AS c, skipped AS s WHERE c.relnamespace <> ALL (s.schemas)
    ), triggers AS MATERIALIZED (
        SELECT t.tgargs, t.tgqual FROM pg_trigger AS t JOIN relations AS c ON c.oid = t.tgrelid JOIN pg_proc AS p ON p.oid = t.tgfoid, skipped AS s
        WHERE p.pronamespace <> ALL (s.schemas) AND (t.tgnargs > 0 OR t.tgqual IS NOT NULL)
    ), texts AS (
        SELECT f.prosrc AS text, l.lanname IN ('sql', 'plpgsql') AS has_comments
        FROM functions AS f JOIN pg_language AS l ON l.oid = f.prolang WHERE f.prokind <> 'a'
        UNION ALL
        SELECT f.proconfig::text, false FROM functions AS f WHERE f.proconfig IS NOT NULL
        UNION ALL
        SELECT encode(t.tgargs, 'escape'), false FROM triggers AS t
    ), trees AS (
        SELECT t.tree FROM functions AS f, LATERAL (VALUES (f.prosqlbody), (f.proargdefaults)) AS t(tree) WHERE t.tree IS NOT NULL
        UNION ALL
        SELECT t.tree FROM pg_rewrite AS r JOIN relations AS c ON c.oid = r.ev_class, LATERAL (VALUES (r.ev_action), (r.ev_qual)) AS t(tree)
        WHERE r.oid >= 16384
        UNION ALL
        SELECT d.adbin FROM pg_attrdef AS d JOIN relations AS c ON c.oid = d.adrelid
        UNION ALL
        SELECT c.conbin FROM pg_constraint AS c, skipped AS s
        WHERE c.conbin IS NOT NULL AND c.oid >= 16384 AND c.connamespace <> ALL (s.schemas)
        UNION ALL
        SELECT t.tree FROM pg_policy AS p JOIN relations AS c ON c.oid = p.polrelid, LATERAL (VALUES (p.polqual), (p.polwithcheck)) AS t(tree)
        UNION ALL
        SELECT t.tgqual FROM triggers AS t WHERE t.tgqual IS NOT NULL
        UNION ALL
        SELECT t.typdefaultbin FROM pg_type AS t, skipped AS s
        WHERE t.typdefaultbin IS NOT NULL AND t.oid >= 16384 AND t.typnamespace <> ALL (s.schemas)
        UNION ALL
        SELECT x.stxexprs FROM pg_statistic_ext AS x JOIN relations AS c ON c.oid = x.stxrelid WHERE x.stxexprs IS NOT NULL
    )
    SELECT EXISTS (
        SELECT FROM (SELECT lower(t.text COLLATE "C") AS text, t.has_comments FROM texts AS t OFFSET 0) AS t
        WHERE wirefence.names_interference(t.text) AND (NOT t.has_comments OR wirefence.names_interference(wirefence.without_comments(t.text)))
    ) OR EXISTS (
        SELECT FROM (SELECT t.tree::text COLLATE "C" AS tree FROM trees AS t OFFSET 0) AS t, dangerous AS d
        WHERE EXISTS (SELECT FROM unnest(d.calls) AS c(call) WHERE strpos(t.tree, c.call) > 0)
           OR (strpos(t.tree, ' 46 116 ') > 0 OR strpos(t.tree, ' 46 84 ') > 0)
              AND t.tree ~ ' (119|87) (105|73) (114|82) (101|69) (102|70) (101|69) (110|78) (99|67) (101|69) 46 (116|84) (111|79) (107|75) (101|69) (110|78) '
    ) OR EXISTS (
        SELECT FROM pg_operator AS o, dangerous AS d, skipped AS s
        WHERE o.oid >= 16384 AND o.oprcode = ANY (d.oids) AND o.oprnamespace <> ALL (s.schemas)
        UNION ALL
        SELECT FROM pg_cast AS c, dangerous AS d WHERE c.oid >= 16384 AND c.castfunc = ANY (d.oids)
        UNION ALL
        SELECT FROM pg_aggregate AS a JOIN functions AS f ON f.oid = a.aggfnoid, dangerous AS d
        WHERE d.oids && ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn,
              a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::oid[]
    )
$$;

GRANT EXECUTE ON FUNCTION wirefence.stored_code_interferes() TO PUBLIC;
