-- Declaring a class of rows. Each class has two functions that only declare_rows writes. The claim is
-- a SQL function of the row's columns. PostgreSQL reads the owner's expressions once, when it is
-- created, so neither a setting nor another object of the same name changes them later. The judge looks
-- the rows up, with the rights of the caller: a role that may not update the job may not check it. All
-- code with these rights qualifies every name and operator, or has a search_path of its own.
--
-- A class whose rows are a lock of the application's, with an end, is followed: a trigger records
-- which transaction took each row, and tells the session, so that its proxy can make a lease of it.
SET LOCAL search_path = pg_catalog, pg_temp;

-- row_claims has the claims of followed classes, each changed by the transaction that changes its row.
-- Nobody refers to it by key but Wirefence, and a claim may outlast its class.
CREATE TABLE wirefence.row_claims (
    name     text COLLATE "C" PRIMARY KEY,
    claim    bigint NOT NULL,
    until    timestamptz NOT NULL,
    taken_in xid8 NOT NULL
);

COMMENT ON TABLE wirefence.row_claims IS 'The claims of the rows of followed classes, written by a trigger on their tables.';
COMMENT ON COLUMN wirefence.row_claims.name IS 'The row as a fence names it.';
COMMENT ON COLUMN wirefence.row_claims.taken_in IS 'The transaction that took the row, not those that extended its claim.';

GRANT SELECT ON wirefence.row_claims TO wirefence_issuer;

-- exactly returns a value, whose type must be exactly that of the other. PostgreSQL inlines it.
CREATE FUNCTION wirefence.exactly(value anyelement, kind anyelement) RETURNS anyelement
LANGUAGE sql IMMUTABLE
AS 'SELECT $1';

-- row_columns returns the columns that a claim and a condition may use, the type that they have
-- there, and how a judge reads them. No code but PostgreSQL's own takes part, and no setting: a
-- timestamptz is the timestamp in UTC, and an enum its label.
CREATE FUNCTION wirefence.row_columns(target regclass) RETURNS TABLE (name text, type text, expression text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.attname::text, format('pg_catalog.%I', CASE WHEN t.typtype = 'e' THEN 'text' WHEN t.oid = 'timestamptz'::regtype THEN 'timestamp' ELSE t.typname END),
           format(CASE WHEN t.typtype = 'e' THEN 'pg_catalog.textin(pg_catalog.enum_out(t.%1$I))'
                       WHEN t.oid = 'timestamptz'::regtype THEN 'pg_catalog.timezone(''UTC'', wirefence.exactly(t.%1$I, NULL::pg_catalog.%2$I))'
                       ELSE 'wirefence.exactly(t.%1$I, NULL::pg_catalog.%2$I)' END, a.attname, t.typname)
    FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
    WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped AND (t.typtype = 'e' OR t.oid < 16384 AND t.typnamespace = 'pg_catalog'::regnamespace)
$$;

-- judge_source returns the judge of a class. It has either a pair, whose row it locks, or the
-- keys and claims of pairs, as a fence spells them; whether to lock; and whether the transaction
-- keeps its snapshot. It returns null if all pairs find their rows, otherwise the place of the
-- first one that doesn't, and the reason; 0 if the table has gone; or 0 alone if it does not know
-- the pair by this short way.
--
-- Each pair is looked up by itself: to count the rows that were found would let one stand in
-- for another. A key must be that of one row, in case that the unique index has gone. In a
-- snapshot the row of a pair that found none is locked, too. That raises 40001 if the row has
-- changed since, as by the take that the claim comes from. An empty reason says that there is a
-- row that fits by now: it took the place of one that was deleted meanwhile.
--
-- The table is found by its name. Its columns must have the types that they had, since others
-- may have casts of somebody's own. A view has no tableoid.
CREATE FUNCTION wirefence.judge_source(declared wirefence.row_classes, arguments text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($function$
CREATE OR REPLACE FUNCTION wirefence.%1$I(wirefence_pair text, wirefence_keys text[], wirefence_claims bigint[], wirefence_locking boolean, wirefence_snapshot boolean) RETURNS text
LANGUAGE plpgsql
AS $judge$
#variable_conflict use_column
DECLARE
    wirefence_fits boolean;
    wirefence_place bigint;
    wirefence_reason pg_catalog.text;
BEGIN
    IF pg_catalog.to_regclass(%6$L) IS NULL OR pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL AND wirefence.is_distributed(pg_catalog.to_regclass(%6$L)) THEN
        RETURN %7$L;
    ELSIF $1 IS NOT NULL THEN
        IF $1 COLLATE pg_catalog."C" OPERATOR(pg_catalog.~) %2$L THEN
            SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 AND pg_catalog.min(r.claim) OPERATOR(pg_catalog.=) pg_catalog.split_part($1, '=', 2)::pg_catalog.int8
            INTO wirefence_fits FROM (SELECT %3$s AS claim FROM %4$s AS t WHERE %5$s FOR SHARE OF t) AS r;
        END IF;
        RETURN CASE WHEN wirefence_fits THEN NULL ELSE '0' END;
    ELSIF $4 THEN
        SELECT pg_catalog.min(p.wirefence_at) INTO wirefence_place
        FROM (SELECT %8$s, p.wirefence_claim, p.wirefence_at
              FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) WITH ORDINALITY AS p(wirefence_key, wirefence_claim, wirefence_at) ORDER BY %9$s) AS p
        WHERE (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 AND pg_catalog.min(r.claim) OPERATOR(pg_catalog.=) p.wirefence_claim
               FROM (SELECT %3$s AS claim FROM %4$s AS t WHERE %10$s FOR SHARE OF t) AS r) IS NOT TRUE;
    ELSE
        SELECT pg_catalog.min(p.wirefence_at) INTO wirefence_place
        FROM (SELECT %8$s, p.wirefence_claim, p.wirefence_at
              FROM ROWS FROM (pg_catalog.unnest($2), pg_catalog.unnest($3)) WITH ORDINALITY AS p(wirefence_key, wirefence_claim, wirefence_at)) AS p
        WHERE (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 AND pg_catalog.min(%3$s) OPERATOR(pg_catalog.=) p.wirefence_claim FROM %4$s AS t WHERE %10$s) IS NOT TRUE;
    END IF;
    IF wirefence_place IS NULL THEN
        RETURN NULL;
    ELSIF $4 AND $5 THEN
        PERFORM FROM %4$s AS t, (SELECT %8$s FROM (SELECT $2[wirefence_place]) AS p(wirefence_key) OFFSET 0) AS p WHERE %10$s FOR SHARE OF t;
    END IF;
    SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'it has gone'
                WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 1 THEN 'several rows have its key'
                WHEN pg_catalog.min(%3$s) IS NULL THEN 'it is not running'
                WHEN pg_catalog.min(%3$s) OPERATOR(pg_catalog.=) $3[wirefence_place] THEN '' ELSE 'it is under another claim' END
    INTO wirefence_reason
    FROM %4$s AS t, (SELECT %8$s FROM (SELECT $2[wirefence_place]) AS p(wirefence_key) OFFSET 0) AS p WHERE %10$s;
    RETURN pg_catalog.concat(wirefence_place, ' ', wirefence_reason);
END
$judge$ $function$,
        wirefence.row_function(declared.class, 'judge'),
        CASE declared.mode WHEN 'shadow' THEN '^$' ELSE '^' || declared.class || '[(]' || wirefence.key_form(declared.kinds, true) || '[)]=(0|-?[1-9][0-9]{0,17})$' END,
        format('wirefence.%I(%s)', wirefence.row_function(declared.class, 'claim'), arguments),
        CASE left(declared.shape, 1) WHEN 'r' THEN 'ONLY ' ELSE '' END || declared.name,
        't.tableoid IS NOT NULL' || string_agg(k.equals || k.of_pair || coalesce(k.equals_bytes || k.of_pair, ''), '' ORDER BY k.place),
        declared.name,
        '0 table ' || declared.name || ' has gone, or is managed by Citus',
        string_agg(CASE k.kind WHEN 'text' THEN format('CASE WHEN pg_catalog.strpos(p.wirefence_key, ''%%'') OPERATOR(pg_catalog.=) 0 THEN %1$s ELSE wirefence.decode_text(%1$s, ''the key of a row'') END', k.of_key)
                               ELSE k.of_key END || ' AS wirefence_key' || k.place, ', ' ORDER BY k.place),
        string_agg(k.place::text, ', ' ORDER BY k.place),
        't.tableoid IS NOT NULL' || string_agg(concat(k.equals, 'p.wirefence_key', k.place, k.equals_bytes || 'p.wirefence_key' || k.place), '' ORDER BY k.place))
    FROM (SELECT k.kind, k.place, format(' AND %s OPERATOR(pg_catalog.=) ', c.expression) AS equals,
                 CASE k.kind WHEN 'text' THEN format(' AND %s COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) ', c.expression) END AS equals_bytes,
                 format('pg_catalog.split_part(p.wirefence_key, '':'', %s)', k.place) || t.type AS of_key,
                 format('pg_catalog.split_part(pg_catalog.split_part(pg_catalog.split_part($1, ''('', 2), '')'', 1), '':'', %s)', k.place) || t.type AS of_pair
          FROM unnest(declared.key, declared.kinds) WITH ORDINALITY AS k(name, kind, place)
          JOIN wirefence.row_columns(wirefence.row_table(declared.name)) AS c ON c.name = k.name,
          LATERAL (SELECT CASE k.kind WHEN 'integer' THEN '::pg_catalog.int8' WHEN 'uuid' THEN '::pg_catalog.uuid' ELSE '' END AS type) AS t) AS k
$$;

-- follower_source returns the function of the trigger that records the claims of a class.
CREATE FUNCTION wirefence.follower_source(declared wirefence.row_classes, arguments text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($function$
CREATE FUNCTION wirefence.%1$I() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $follow$
DECLARE
    was record;
BEGIN
    IF (wirefence.row_table(%6$L) IN (SELECT TG_RELID UNION ALL SELECT relid FROM pg_partition_ancestors(TG_RELID))) IS NOT TRUE THEN
        RETURN NULL; -- another table took its name, or somebody's has the trigger
    END IF;
    IF TG_OP <> 'INSERT' THEN
        SELECT %2$s AS name, wirefence.%3$I(%5$s) AS claim, timezone('UTC', wirefence.%4$I(%5$s)) AS until INTO was FROM (SELECT OLD.*) AS t;
    ELSE
        SELECT NULL::text AS name, NULL::bigint AS claim, NULL::timestamptz AS until INTO was;
    END IF;
    IF TG_OP = 'DELETE' THEN
        PERFORM wirefence.note_claim(was.name, NULL, NULL, NULL, NULL);
        RETURN NULL;
    END IF;
    PERFORM CASE WHEN was.name <> n.name THEN wirefence.note_claim(was.name, NULL, NULL, NULL, NULL) END,
            CASE WHEN was.name <> n.name THEN wirefence.note_claim(n.name, n.claim, n.until, NULL, NULL) ELSE wirefence.note_claim(n.name, n.claim, n.until, was.claim, was.until) END
    FROM (SELECT %2$s AS name, wirefence.%3$I(%5$s) AS claim, timezone('UTC', wirefence.%4$I(%5$s)) AS until FROM (SELECT NEW.*) AS t) AS n;
    RETURN NULL;
EXCEPTION WHEN syntax_error_or_access_rule_violation OR data_exception OR feature_not_supported OR program_limit_exceeded THEN
    -- Without a recorded claim nobody gets a lease, while an error would keep everybody from the table.
    RAISE WARNING 'the claim of a row of class %7$s cannot be recorded: %%', SQLERRM USING ERRCODE = SQLSTATE, HINT = 'Declare the class again: SELECT * FROM wirefence.rows() says what is wrong with it.';
    RETURN NULL;
END
$follow$ $function$,
        wirefence.row_function(declared.class, 'follow'),
        format('concat(%L, %s, '')'')', declared.class || '(', string_agg(format('wirefence.encode_key((%s)::text)', c.expression), ', '':'', ' ORDER BY k.place)),
        wirefence.row_function(declared.class, 'claim'), wirefence.row_function(declared.class, 'until'), arguments, declared.name, declared.class)
    FROM unnest(declared.key) WITH ORDINALITY AS k(name, place) JOIN wirefence.row_columns(wirefence.row_table(declared.name)) AS c ON c.name = k.name
$$;

-- key_kinds returns the kind of each column of a key. It raises an error if the name, the table
-- or its key can't be a class's, or the caller must not declare it.
CREATE FUNCTION wirefence.key_kinds(class text, target regclass, key text[], caller name) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    judged record;
    col record;
    kinds text[];
BEGIN
    SELECT c.*, pg_get_userbyid(c.relowner) AS owner INTO judged FROM pg_class AS c WHERE c.oid = target;
    IF class COLLATE "C" !~ '^[a-z_][a-z0-9_]{0,62}$' OR class IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the name of a class must have 1 to 63 bytes of a-z 0-9 _ and not start with a digit';
    ELSIF judged.oid IS NULL THEN
        RAISE undefined_table USING MESSAGE = coalesce('table with OID ' || target::oid || ' does not exist', 'the table of the rows is null');
    ELSIF NOT pg_has_role(caller, judged.relowner, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the owner of table ' || target::text || ' may declare its rows',
            HINT = format('Connect as %I, or GRANT %I TO %I.', judged.owner, judged.owner, caller);
    ELSIF judged.relkind NOT IN ('r', 'p') OR judged.relpersistence = 't' THEN
        RAISE wrong_object_type USING MESSAGE = target::text || ' is not a permanent table',
            DETAIL = 'Rows of views, foreign tables and temporary tables cannot judge claims.';
    ELSIF judged.relkind = 'r' AND NOT judged.relispartition AND EXISTS (SELECT FROM pg_inherits AS i WHERE target IN (i.inhrelid, i.inhparent)) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is part of an inheritance tree',
            DETAIL = 'No unique index covers such a tree, so two rows could have one key.', HINT = 'Use a partitioned table.';
    ELSIF wirefence.is_distributed(target) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is managed by Citus',
            DETAIL = 'Its rows are on other nodes, where the lock of a row may end before the transaction.', HINT = 'Use a resource: its token is checked at the coordinator.';
    ELSIF judged.relforcerowsecurity THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' has FORCE ROW LEVEL SECURITY',
            DETAIL = 'Its policies could hide a row from the check, which runs with the rights of the owner.', HINT = format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', target);
    ELSIF EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = target AND a.attnum > 0 AND starts_with(a.attname, 'wirefence_')) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' has a column whose name begins with wirefence_', HINT = 'Rename the column.';
    ELSIF coalesce(cardinality(key), 0) = 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the key names no column';
    END IF;
    FOR col IN
        SELECT k.name, a.atttypid, a.attnotnull, t.typname, coalesce(o.collisdeterministic, true) AS deterministic, count(*) OVER (PARTITION BY k.name) AS named
        FROM unnest(key) WITH ORDINALITY AS k(name, place)
        LEFT JOIN pg_attribute AS a ON a.attrelid = target AND a.attname = k.name AND a.attnum > 0
        LEFT JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_collation AS o ON o.oid = a.attcollation
        ORDER BY k.place
    LOOP
        IF col.atttypid IS NULL THEN
            RAISE undefined_column USING MESSAGE = 'the key names column ' || coalesce(wirefence.quote_name(col.name), 'null') || ', which table ' || target::text || ' does not have';
        ELSIF col.named > 1 THEN
            RAISE duplicate_column USING MESSAGE = 'the key names column ' || wirefence.quote_name(col.name) || ' twice';
        ELSIF NOT col.attnotnull THEN
            RAISE invalid_parameter_value USING MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' of the key may be null',
                HINT = format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', target, col.name);
        END IF;
        kinds := kinds || CASE WHEN col.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN 'integer'
            WHEN col.atttypid = 'uuid'::regtype THEN 'uuid' WHEN col.atttypid IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype) AND col.deterministic THEN 'text' END;
        IF kinds[cardinality(kinds)] IS NULL THEN
            RAISE datatype_mismatch USING MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' of the key is of type ' || col.atttypid::regtype
                    || CASE WHEN col.deterministic THEN '' ELSE ' with a nondeterministic collation' END,
                DETAIL = 'Equal values of it may have different texts.', HINT = 'A key has columns of integer types, uuid, text, varchar or char.';
        END IF;
    END LOOP;
    IF wirefence.row_shape(target, key, key) NOT LIKE '% unique' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'table ' || target::text || ' has no unique index on exactly ' || array_to_string(key, ', '),
            DETAIL = 'It must be valid, not DEFERRABLE, and without a condition or expressions: otherwise two rows could have one key.';
    END IF;
    RETURN kinds;
END
$$;

-- is_claim, is_condition and is_end give an expression the type that it must have, so that
-- PostgreSQL says which one it has.
CREATE FUNCTION wirefence.is_claim(claim bigint) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN claim;
CREATE FUNCTION wirefence.is_condition(condition boolean) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN condition;
CREATE FUNCTION wirefence.is_end("end" timestamp) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN "end";

-- plan_rows returns the statement that creates an empty table with the columns that a claim and
-- a condition may use.
CREATE FUNCTION wirefence.plan_rows(class text, target regclass, key text[], caller name) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.key_kinds(class, target, key, caller);
    RETURN (SELECT format('CREATE TEMPORARY TABLE wirefence_rows (%s)', string_agg(format('%I %s', c.name, c.type), ', ')) FROM wirefence.row_columns(target) AS c);
END
$$;

-- parsed_rows returns a claim or a condition as PostgreSQL prints it, and the columns that it
-- names. It was read for an index of the copy: that looks at one row alone, and depends on no
-- setting. PostgreSQL records on what else than itself it depends: nothing is allowed.
CREATE FUNCTION wirefence.parsed_rows(what text, OUT expression text, OUT columns text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    culprit text;
BEGIN
    SELECT substring(pg_get_expr(i.indexprs, i.indrelid) FROM '^wirefence[.]is_' || what || '[(](.*)[)]$'), c.columns, c.culprit
    INTO expression, columns, culprit
    FROM pg_index AS i, LATERAL (
        SELECT array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum > 0) AS columns,
               min(pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)) FILTER (WHERE d.refobjid <> i.indrelid) AS culprit
        FROM pg_depend AS d LEFT JOIN pg_attribute AS a ON d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refobjid >= 16384 AND d.refobjid <> format('wirefence.is_%s', what)::regproc) AS c
    WHERE i.indexrelid = to_regclass('pg_temp.wirefence_' || what);
    IF culprit IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' uses ' || culprit,
            DETAIL = 'It may use the columns of the row and built-in functions that depend on nothing else: what another row or a function reads may be older than the lock.';
    ELSIF expression IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' is not one expression';
    ELSIF columns IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' names no column of the table', DETAIL = 'It is ' || expression || '.';
    END IF;
END
$$;

-- drop_functions drops those functions of a class that exist, and the trigger with its function.
CREATE FUNCTION wirefence.drop_functions(class text, kinds text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    generated record;
BEGIN
    FOR generated IN SELECT p.oid::regprocedure AS function, k.kind FROM pg_proc AS p, unnest(kinds) AS k(kind)
        WHERE p.pronamespace = 'wirefence'::regnamespace AND p.proname = wirefence.row_function(class, k.kind) LOOP
        EXECUTE concat('DROP FUNCTION ', generated.function, CASE generated.kind WHEN 'follow' THEN ' CASCADE' END);
    END LOOP;
END
$$;

-- note_claim records the claim of a row, null for none, and tells the session which transaction took the
-- row, if it was its own: no other may make a lease of it. A row that was under the same claim until now
-- is extended, whether or not that claim was recorded. client_min_messages suppresses no INFO.
CREATE FUNCTION wirefence.note_claim(named text, claimed bigint, ends timestamptz, was_claimed bigint, was_to_end timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    extended CONSTANT boolean := coalesce(claimed = was_claimed AND was_to_end > clock_timestamp(), false);
    taken CONSTANT xid8 := CASE WHEN extended THEN '0' ELSE pg_current_xact_id() END;
BEGIN
    IF claimed IS NULL OR ends IS NULL THEN
        DELETE FROM wirefence.row_claims AS r WHERE r.name = named;
    ELSE
        INSERT INTO wirefence.row_claims AS r VALUES (named, claimed, ends, taken)
        ON CONFLICT ON CONSTRAINT row_claims_pkey DO UPDATE SET (claim, until, taken_in) = (excluded.claim, excluded.until,
            CASE WHEN extended AND r.claim = excluded.claim THEN r.taken_in ELSE excluded.taken_in END);
    END IF;
    RAISE INFO USING MESSAGE = 'the claim of row ' || named || ' has changed', SCHEMA = 'wirefence', TABLE = 'row_claims', DETAIL = concat_ws(' ', named,
        (SELECT r.taken_in FROM wirefence.row_claims AS r WHERE r.name = named AND r.taken_in = pg_current_xact_id()));
END
$$;

-- claim_stands reports whether a row is still under the claim of the transaction that took it. It has a
-- snapshot of its own.
CREATE FUNCTION wirefence.claim_stands(named text, taken text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM wirefence.row_claims AS r WHERE r.name = named AND r.taken_in = taken::xid8 AND r.until > clock_timestamp());
END
$$;

-- record_rows records a class and creates its functions. Its texts are wirefence's own, with names
-- that format quotes, and the expressions that parsed_rows returns: PostgreSQL prints these, with
-- nothing in them but its own functions, types and operators. None is run here.
CREATE FUNCTION wirefence.declare_called(call text[]) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET quote_all_identifiers = off
AS $$
DECLARE
    class CONSTANT text := call[2];
    target CONSTANT regclass := call[3]::oid;
    key CONSTANT text[] := call[4];
    declared wirefence.row_classes;
    claim CONSTANT record := wirefence.parsed_rows('claim');
    condition CONSTANT record := wirefence.parsed_rows('condition');
    until record;
    arguments record;
    culprit text;
BEGIN
    declared.kinds := wirefence.key_kinds(class, target, key, call[1]);
    IF wirefence.citus_group() IS NOT NULL THEN -- what wirefence_owner does on other nodes can't be undone here
        RAISE feature_not_supported USING MESSAGE = 'rows cannot judge where each node of Citus has the tokens';
    END IF;
    IF to_regclass('pg_temp.wirefence_end') IS NOT NULL THEN
        until := wirefence.parsed_rows('end');
    ELSE
        SELECT NULL::text AS expression, NULL::text[] AS columns INTO until;
    END IF;
    SELECT string_agg(format('%I %s', c.name, c.type), ', ' ORDER BY c.name) AS parameters, string_agg(c.expression, ', ' ORDER BY c.name) AS values INTO arguments
    FROM wirefence.row_columns(target) AS c WHERE c.name = ANY (claim.columns || condition.columns || until.columns);
    declared.name := (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = target);
    declared.columns := ARRAY(SELECT u.name FROM unnest(key || claim.columns || condition.columns || until.columns) AS u(name) GROUP BY 1 ORDER BY 1);
    INSERT INTO wirefence.row_classes AS r (class, name, key, kinds, claim, condition, until, mode, columns, shape, declared_by)
    VALUES (class, declared.name, key, declared.kinds, claim.expression, condition.expression, until.expression, CASE call[5] WHEN 'true' THEN 'shadow' ELSE 'enforce' END, declared.columns,
            wirefence.row_shape(target, key, declared.columns), call[1])
    ON CONFLICT ON CONSTRAINT row_classes_pkey DO UPDATE SET (key, kinds, claim, condition, until, mode, columns, shape, declared_by, declared_at)
        = (excluded.key, excluded.kinds, excluded.claim, excluded.condition, excluded.until, excluded.mode, excluded.columns, excluded.shape, excluded.declared_by, excluded.declared_at)
    WHERE r.name = excluded.name
    RETURNING r.* INTO declared;
    IF NOT FOUND THEN
        RAISE duplicate_object USING
            MESSAGE = 'class ' || wirefence.quote_name(class) || ' is already declared for table ' || (SELECT r.name FROM wirefence.row_classes AS r WHERE r.class = call[2]),
            HINT = format('Run SELECT wirefence.drop_rows(%L) first.', class);
    END IF;
    PERFORM wirefence.drop_functions(class, '{claim,until,follow}');
    EXECUTE format('CREATE FUNCTION wirefence.%I(%s) RETURNS bigint LANGUAGE sql STABLE RETURN CASE WHEN %s THEN %s END',
                   wirefence.row_function(class, 'claim'), arguments.parameters, condition.expression, claim.expression);
    EXECUTE wirefence.judge_source(declared, arguments.values);
    IF until.expression IS NOT NULL THEN
        IF EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = target AND a.attname = ANY (declared.columns) AND a.attgenerated = 'v') THEN
            RAISE feature_not_supported USING MESSAGE = 'a trigger does not see virtual generated columns', HINT = 'Use the expressions that they are generated by.';
        END IF;
        EXECUTE format('CREATE FUNCTION wirefence.%I(%s) RETURNS timestamp LANGUAGE sql STABLE RETURN %s', wirefence.row_function(class, 'until'), arguments.parameters, until.expression);
        EXECUTE wirefence.follower_source(declared, arguments.values);
        EXECUTE format('GRANT EXECUTE ON FUNCTION wirefence.%I TO %I', wirefence.row_function(class, 'follow'), (SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c WHERE c.oid = target));
    END IF;
    EXECUTE format('GRANT EXECUTE ON FUNCTION wirefence.%I, wirefence.%I TO PUBLIC', wirefence.row_function(class, 'claim'), wirefence.row_function(class, 'judge'));
    -- The types are those of the table, so they may have chosen other functions than the copy's.
    SELECT min(f.oid::regprocedure::text) INTO culprit
    FROM pg_proc AS p, regexp_matches(p.prosqlbody::text, ':(?:funcid|opfuncid|hashfuncid|negfuncid) ([0-9]+)', 'g') AS m, pg_proc AS f
    WHERE p.oid IN (to_regproc(format('wirefence.%I', wirefence.row_function(class, 'claim'))), to_regproc(format('wirefence.%I', wirefence.row_function(class, 'until'))))
      AND f.oid = m[1]::oid AND (f.oid >= 16384 OR f.provolatile <> 'i');
    IF culprit IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the claim, the condition or the end uses ' || culprit, HINT = 'Call wirefence.declare_rows.';
    END IF;
    RETURN true;
END
$$;

CREATE AGGREGATE wirefence.record_rows(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.declare_called);

-- declare_rows changes the declaration if it is called again. The expressions are read with the rights
-- of the caller, who owns the table and so may have a trigger on it.
CREATE FUNCTION wirefence.declare_rows(class text, "table" regclass, key text[], claim text, "while" text, shadow boolean DEFAULT false, until text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    copy CONSTANT text := wirefence.plan_rows(class, "table", key, current_user);
    propagated CONSTANT text := wirefence.propagate('off');
    given record;
BEGIN
    EXECUTE copy;
    FOR given IN SELECT * FROM (VALUES ('claim', claim), ('condition', "while"), ('end', until)) AS v(what, expression) WHERE v.what <> 'end' OR v.expression IS NOT NULL LOOP
        BEGIN
            EXECUTE format(E'CREATE INDEX wirefence_%s ON pg_temp.wirefence_rows ((wirefence.is_%1$s(%s\n)))', given.what, given.expression);
        EXCEPTION WHEN OTHERS THEN
            RAISE EXCEPTION USING ERRCODE = SQLSTATE,
                MESSAGE = CASE WHEN SQLSTATE = '42883' AND SQLERRM LIKE 'function wirefence.%'
                    THEN 'the ' || given.what || ' is of the wrong type: ' || SQLERRM ELSE 'the ' || given.what || ' cannot be used: ' || SQLERRM END,
                DETAIL = 'It is ' || coalesce(quote_literal(given.expression), 'null') || '.',
                HINT = CASE given.what WHEN 'claim' THEN 'A claim is an expression of type bigint: cast it with ::bigint.' WHEN 'end' THEN 'The end of a claim is an expression of type timestamp, in UTC.' ELSE 'The condition is a boolean expression.' END
                    || ' It may use the row''s columns of built-in types and enums, and immutable built-in functions. A timestamptz counts as the timestamp in UTC, an enum as its label, a text.';
        END;
    END LOOP;
    PERFORM wirefence.record_rows(class, "table"::oid::text, key::text, shadow::text);
    DROP TABLE pg_temp.wirefence_rows;
    IF until IS NOT NULL THEN
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION wirefence.%1$I()', wirefence.row_function(class, 'follow'), "table");
    END IF;
    PERFORM wirefence.propagate(propagated);
END
$$;

-- require_role raises 42501 unless the caller has the rights of the owner of a table or, if that has
-- gone, of the role that declared it or of an issuer.
CREATE FUNCTION wirefence.require_role(caller text, owner oid, declared_by text, what text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF owner IS NOT NULL AND NOT pg_has_role(caller, owner, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied to ' || what,
            HINT = format('Connect as %I, who owns the table, or GRANT %1$I TO %I.', pg_get_userbyid(owner), caller);
    ELSIF owner IS NULL AND NOT pg_has_role(caller, 'wirefence_issuer', 'USAGE')
          AND NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = declared_by AND pg_has_role(caller, r.oid, 'USAGE')) THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied to ' || what,
            HINT = 'Connect as ' || declared_by || ', who declared it, or as a member of wirefence_issuer.';
    END IF;
END
$$;

-- drop_rows takes a declaration back: fences of the class get WF008 from then on. The owner of
-- the table may do that; when the table has gone, the role that declared it and issuers.
CREATE FUNCTION wirefence.drop_called(call text[]) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    declared wirefence.row_classes;
BEGIN
    SELECT * INTO declared FROM wirefence.row_classes AS r WHERE r.class = call[2];
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = 'class ' || coalesce(wirefence.quote_name(call[2]), 'null') || ' is not declared', HINT = 'SELECT * FROM wirefence.rows() lists the classes.';
    END IF;
    PERFORM wirefence.require_role(call[1], (SELECT c.relowner FROM pg_class AS c WHERE c.oid = wirefence.row_table(declared.name)), declared.declared_by, 'drop class ' || wirefence.quote_name(declared.class));
    DELETE FROM wirefence.row_classes AS r WHERE r.class = declared.class;
    PERFORM wirefence.drop_functions(declared.class, '{claim,judge,until,follow}'); -- first: it waits for the table's writers
    DELETE FROM wirefence.row_claims AS r WHERE starts_with(r.name, declared.class || '(');
    RETURN true;
END
$$;

CREATE AGGREGATE wirefence.drop_class(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.drop_called);

CREATE FUNCTION wirefence.drop_rows(class text) RETURNS void
LANGUAGE sql VOLATILE
RETURN wirefence.drop_class(class);

CREATE FUNCTION wirefence.rows() RETURNS TABLE (class text, relation text, key text[], claim text, "while" text, until text, mode text, declared_by text, declared_at timestamptz, fault text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT r.class, r.name, r.key, r.claim, r.condition, r.until, r.mode, r.declared_by, r.declared_at,
           CASE WHEN wirefence.row_table(r.name) IS NULL THEN 'the table has gone, or another name: drop the class, and declare it for the table that took its place'
                WHEN to_regproc(format('wirefence.%I', wirefence.row_function(r.class, 'judge'))) IS NULL THEN 'its judge has gone: declare it again'
                WHEN wirefence.is_distributed(wirefence.row_table(r.name)) OR wirefence.row_shape(wirefence.row_table(r.name), r.key, r.columns) <> r.shape
                THEN 'a column that the class uses was altered, or the unique index on its key has gone: mend that, and declare it again'
                WHEN r.until IS NOT NULL AND NOT EXISTS (
                    SELECT FROM pg_trigger AS t WHERE t.tgrelid = wirefence.row_table(r.name) AND t.tgenabled IN ('O', 'A')
                    AND t.tgfoid = to_regproc(format('wirefence.%I', wirefence.row_function(r.class, 'follow'))))
                THEN 'its trigger has gone or is disabled, so that nobody follows its rows: enable it, or declare the class again' END
    FROM wirefence.row_classes AS r
    ORDER BY 1;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.exactly(anyelement, anyelement), wirefence.decode_text(text, text),
    wirefence.declare_rows(text, regclass, text[], text, text, boolean, text), wirefence.plan_rows(text, regclass, text[], name),
    wirefence.is_claim(bigint), wirefence.is_condition(boolean), wirefence.is_end(timestamp), wirefence.record_rows(text[]), wirefence.drop_class(text[]),
    wirefence.drop_rows(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION wirefence.rows(), wirefence.claim_stands(text, text) TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.declare_rows(text, regclass, text[], text, text, boolean, text) IS 'Makes the rows of a table judges of their own claims: a fence class(key)=claim is valid while the row with this key has this claim and meets the condition. claim is an expression of type bigint over the columns of the row, while a condition on them. With shadow, the class refuses nothing and records in the history what it would refuse. With until, the timestamp in UTC at which a claim ends, a trigger lets sidecars make leases of the rows. The caller must own the table.';
COMMENT ON FUNCTION wirefence.drop_rows(text) IS 'Takes the declaration of a class back. Its fences are refused with WF008 from then on.';
COMMENT ON FUNCTION wirefence.rows() IS 'Returns the declared classes of rows. until is null for a class that is not followed. fault says why a class refuses all its fences, or why its rows are not followed, null if neither is so.';
