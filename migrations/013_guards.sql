-- Guards: triggers that check every write to a table, whatever path the write took.
SET LOCAL search_path = pg_catalog, pg_temp;

-- bypasses has a row for each transaction in which a member of wirefence_bypass wrote without
-- the token that a guard required. The row names the first such table of the transaction. xid
-- alone is not unique: a database that was restored elsewhere may use the number of a
-- transaction again.
CREATE TABLE wirefence.bypasses (
    xid         xid8 NOT NULL,
    began_at    timestamptz NOT NULL DEFAULT now(),
    relation    text NOT NULL,
    resource    text COLLATE "C" NOT NULL,
    login       text NOT NULL,
    application text NOT NULL,
    address     inet,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (xid, began_at)
);

CREATE INDEX bypasses_written ON wirefence.bypasses (written_at);

COMMENT ON TABLE wirefence.bypasses IS 'Transactions in which a member of wirefence_bypass wrote to a guarded table without a token.';

GRANT SELECT ON wirefence.guards, wirefence.bypasses TO wirefence_issuer;

-- guard_triggers lists the triggers of guards. from_parent says that a partition has the
-- trigger from its parent.
CREATE VIEW wirefence.guard_triggers AS
SELECT t.tgrelid::regclass AS relation, t.tgname AS name, t.tgnargs > CASE p.proname WHEN 'guard' THEN 2 ELSE 1 END AS shadow, p.proname AS function, t.tgenabled AS enabled,
       CASE WHEN t.tgnargs > 0 THEN convert_from(substr(t.tgargs, 1, position(decode('00', 'hex') IN t.tgargs) - 1), getdatabaseencoding()) END AS resource,
       t.tgparentid <> 0 AS from_parent, t.tgtype & 1 = 1 AS for_each_row
FROM pg_trigger AS t
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE p.pronamespace = 'wirefence'::regnamespace AND p.proname IN ('guard', 'guard_row', 'guard_rows', 'guard_statement');

-- inheritance_tree lists a table with all its partitions and all tables that inherit from it,
-- parents first. With the default of 1000 rows, guarded() looks so costly that the server
-- compiles it, which takes longer than all else in it.
CREATE FUNCTION wirefence.inheritance_tree(target regclass) RETURNS TABLE (member regclass, kind "char", is_partition boolean)
LANGUAGE sql STABLE ROWS 4 SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE family AS (
        SELECT target::oid AS member, 0 AS depth
        UNION
        SELECT i.inhrelid, family.depth + 1 FROM pg_inherits AS i JOIN family ON i.inhparent = family.member
    )
    SELECT c.oid::regclass, c.relkind, c.relispartition AND c.oid <> target
    FROM (SELECT f.member, max(f.depth) AS depth FROM family AS f GROUP BY f.member) AS f JOIN pg_class AS c ON c.oid = f.member
    ORDER BY f.depth, c.oid
$$;

-- may_bypass reports whether the session's login is a member of wirefence_bypass by a grant.
-- A superuser is not, although PostgreSQL treats it as a member of every role. From
-- PostgreSQL 16 on, a role that may only grant wirefence_bypass, as its creator may, is not a
-- member either.
CREATE FUNCTION wirefence.may_bypass() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE granted AS (
        SELECT m.roleid, m.member FROM pg_auth_members AS m
        WHERE coalesce((to_jsonb(m) ->> 'inherit_option')::boolean OR (to_jsonb(m) ->> 'set_option')::boolean, true)
    ), membership AS (
        SELECT g.roleid FROM granted AS g JOIN pg_roles AS r ON r.oid = g.member WHERE r.rolname = session_user
        UNION
        SELECT g.roleid FROM granted AS g JOIN membership ON g.member = membership.roleid
    )
    SELECT EXISTS (SELECT FROM membership JOIN pg_roles AS r ON r.oid = membership.roleid WHERE r.rolname = 'wirefence_bypass')
$$;

-- record_bypass records a transaction in which a member of wirefence_bypass writes without a
-- token. It returns false for a login that may not do that.
CREATE FUNCTION wirefence.record_bypass(target regclass, resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT wirefence.may_bypass() THEN
        RETURN false;
    END IF;
    INSERT INTO wirefence.bypasses (xid, relation, resource, login, application, address)
    VALUES (pg_current_xact_id(), target::text, resource, session_user, current_setting('application_name'), inet_client_addr())
    ON CONFLICT DO NOTHING;
    PERFORM wirefence.note_checked(ltrim(wirefence.entry(resource), ',') || '(bypass)');
    RETURN true;
END
$$;

-- refuse_unguarded raises WF002 for a guarded table.
CREATE FUNCTION wirefence.refuse_unguarded(target regclass, resource text, carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal('WF002', regexp_replace(resource, '^([a-z_][a-z0-9_]*[(]).*[)]$', '\1)')), -- of rows, the class
        ERRCODE = 'WF002',
        MESSAGE = 'a fencing token is required for resource ' || coalesce(wirefence.quote_name(resource), 'null'),
        DETAIL = 'Table ' || coalesce(target::text, 'null') || ' is guarded, and ' || CASE WHEN carried IS NULL
            THEN 'the session carries no fence.' ELSE 'the fence of the session names other resources only.' END,
        HINT = 'Set wirefence.token to a fence that names the resource, or write through the proxy with such a fence: wirefence lock has it in WIREFENCE_FENCE. Members of wirefence_bypass may write without a fence.';
END
$$;

-- has_guard_for reports whether a table has a guard, in shadow mode or not, that may ask for
-- a resource.
CREATE FUNCTION wirefence.has_guard_for(target regclass, resource text, shadow boolean) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM wirefence.guard_triggers AS g
                   WHERE g.relation = target AND g.shadow = has_guard_for.shadow AND (g.resource = has_guard_for.resource OR g.function <> 'guard'))
$$;

-- guard_unchecked runs when a check has passed that noted nothing of the resource: the fence of
-- the session does not name it, wirefence.checked is long, or the guard is not declared, as after
-- the restore of a part of a dump.
CREATE FUNCTION wirefence.guard_unchecked(target regclass, resource text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := wirefence.guarded_by();
BEGIN
    IF wirefence.is_checked(resource) OR resource COLLATE "C" = ANY ((wirefence.read_fence(carried, NULL)).resources) THEN
        RETURN;
    ELSIF NOT wirefence.has_guard_for(target, resource, false) THEN
        PERFORM wirefence.refuse_unguarded(target, resource, carried);
    ELSIF wirefence.record_bypass(target, resource) THEN
        RETURN;
    ELSIF NOT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = resource AND l.mode = 'shadow') THEN
        PERFORM wirefence.refuse_unguarded(target, resource, carried);
    END IF;
    PERFORM wirefence.note('shadow', 'WF002', resource, NULL, NULL, NULL, NULL, target::text),
            wirefence.note_checked(ltrim(wirefence.entry(resource), ',') || '(shadow)');
END
$$;

-- find_pair returns the token and the source that a fence has for a resource, null if it has
-- none. is_malformed says that the fence cannot be parsed, which is not counted as a refusal.
CREATE FUNCTION wirefence.find_pair(fence text, resource text, OUT token bigint, OUT source text, OUT is_malformed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.suppress_counting(true);
    SELECT u.token, u.source INTO token, source
    FROM (SELECT p.* FROM wirefence.parse_fence(fence, NULL) AS p) AS f,
         unnest(f.resources, f.tokens, f.sources) AS u(resource, token, source)
    WHERE u.resource = find_pair.resource COLLATE "C";
    PERFORM wirefence.suppress_counting(false);
EXCEPTION WHEN SQLSTATE 'WF004' THEN
    is_malformed := true;
END
$$;

-- guard_shadowed is guard_unchecked for a guard in shadow mode. It refuses nothing. It
-- records each resource once in a transaction, and only the first ones if there are many.
-- Every role may call it, so it acts only for guards that exist. state is the SQLSTATE of a
-- refusal that does not depend on a token.
CREATE FUNCTION wirefence.guard_shadowed(target regclass, resource text, state text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := wirefence.guarded_by();
    noted CONSTANT text := current_setting('wirefence.checked', true);
    token bigint;
    source text;
    is_malformed boolean;
BEGIN
    IF pg_trigger_depth() = 0 OR NOT wirefence.has_guard_for(target, resource, true) OR wirefence.is_checked(resource)
       OR strpos(noted, ',(shadow)' || ltrim(wirefence.entry(resource), ',')) > 0 OR strpos(noted, ',(shadow)=') > 0
       OR wirefence.record_bypass(target, resource) OR current_setting('transaction_read_only') = 'on' THEN
        RETURN;
    END IF;
    IF state IS NULL AND carried IS NOT NULL THEN
        SELECT p.* INTO token, source, is_malformed FROM wirefence.find_pair(carried, resource) AS p;
        IF is_malformed THEN
            state := 'WF004';
        ELSIF token IS NOT NULL THEN
            state := 'judge';
        END IF;
    END IF;
    state := coalesce(state, 'WF002');
    IF length(noted) > 8192 THEN
        resource := ''; -- for all further ones
    END IF;
    PERFORM wirefence.note_checked('(shadow)' || ltrim(wirefence.entry(resource), ','));
    IF state ~ '^WF00[1-8]$' THEN
        PERFORM wirefence.note('shadow', state, left(nullif(resource, ''), 255), NULL, NULL, NULL, NULL, target::text);
    ELSIF token IS NOT NULL AND resource <> '' THEN
        PERFORM wirefence.judge_in_shadow(ARRAY[resource], ARRAY[token], ARRAY[source], true, target::text);
    END IF;
END
$$;

-- guard is the trigger of a table with one resource. It runs before each statement, and for rows
-- that come in by a statement on another table, a parent. Its arguments are the resource and its
-- entry in wirefence.checked; a third one says that the guard is in shadow mode.
--
-- It runs with the rights of the writer. To set a search_path would cost as much as
-- everything else in it, so it qualifies every name, those of operators too.
CREATE FUNCTION wirefence.guard() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    checked pg_catalog.text := pg_catalog.current_setting('wirefence.checked', true);
    carried pg_catalog.text;
BEGIN
    IF pg_catalog.strpos(checked, TG_ARGV[1]) OPERATOR(pg_catalog.>) 0 THEN
        RETURN NULL;
    END IF;
    carried := pg_catalog.current_setting('wirefence.token', true);
    IF TG_NARGS OPERATOR(pg_catalog.=) 2 AND wirefence.check_current(TG_ARGV[0], carried) THEN
        checked := pg_catalog.set_config('wirefence.checked', pg_catalog.concat(checked, ',', carried, ','), true);
    ELSIF TG_NARGS OPERATOR(pg_catalog.=) 2 AND wirefence.check_current(TG_ARGV[0], wirefence.guarded_by()) AND wirefence.note_tokens(wirefence.guarded_by()) THEN
        NULL;
    ELSIF TG_NARGS OPERATOR(pg_catalog.>) 2 THEN
        PERFORM wirefence.guard_shadowed(TG_RELID::pg_catalog.regclass, TG_ARGV[0]);
    ELSE
        PERFORM wirefence.check(wirefence.guarded_by(), NULL, false, false), wirefence.guard_unchecked(TG_RELID::pg_catalog.regclass, TG_ARGV[0]);
    END IF;
    RETURN NULL;
END
$$;

-- name_parts splits a template such as report:{tenant}:{id} into literal texts and columns,
-- in order. A doubled brace is the brace itself.
CREATE FUNCTION wirefence.name_parts(template text) RETURNS TABLE (part text, is_column boolean)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    token text;
    rebuilt text := '';
BEGIN
    FOR token IN SELECT m[1] FROM regexp_matches(template, '([{][{]|[}][}]|[{][^{}]+[}]|[^{}]+)', 'g') AS m LOOP
        rebuilt := rebuilt || token;
        is_column := token LIKE '{_%}';
        part := CASE WHEN is_column THEN substr(token, 2, length(token) - 2)
                     WHEN token ~ '[{}]' THEN left(token, 1) ELSE token END;
        RETURN NEXT;
    END LOOP;
    IF rebuilt <> template THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'resource ' || wirefence.quote_name(template) || ' has unbalanced braces',
            HINT = 'Write columns in braces, as in report:{tenant}:{id}, and double each brace that is part of the name.';
    END IF;
END
$$;

-- is_template reports whether a resource names columns, and raises 22023 if its form is
-- wrong.
CREATE FUNCTION wirefence.is_template(resource text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(octet_length(resource), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a resource name must have 1 to 255 bytes',
            DETAIL = CASE WHEN resource IS NULL THEN 'It is null.' ELSE 'It has ' || octet_length(resource) || ' bytes.' END;
    END IF;
    RETURN (SELECT bool_or(p.is_column) FROM wirefence.name_parts(resource) AS p);
END
$$;

-- plain_name returns the name of a resource without columns.
CREATE FUNCTION wirefence.plain_name(resource text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(p.part, '' ORDER BY p.place)
    FROM wirefence.name_parts(resource) WITH ORDINALITY AS p(part, is_column, place)
$$;

-- name_fields returns the SQL of each part of a template, for columns with a prefix. Two
-- different rows must never give the same name, so the end of a column's value must be
-- recognisable: the first character of the text after the column is percent-encoded in the
-- value, and so is the percent sign. The last column needs no encoding.
CREATE FUNCTION wirefence.name_fields(template text, prefix text) RETURNS TABLE (field text)
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part record;
    mark text;
BEGIN
    FOR part IN
        SELECT p.part, p.is_column, lead(p.part) OVER place AS next_part, coalesce(lead(p.is_column) OVER place, false) AS abuts,
               p.is_column AND bool_or(p.is_column) OVER (ORDER BY p.place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS is_followed
        FROM wirefence.name_parts(template) WITH ORDINALITY AS p(part, is_column, place)
        WINDOW place AS (ORDER BY p.place)
    LOOP
        IF NOT part.is_column THEN
            field := quote_literal(part.part) || '::text';
        ELSIF part.abuts THEN
            RAISE invalid_parameter_value USING
                MESSAGE = 'resource ' || wirefence.quote_name(template) || ' has adjacent columns',
                DETAIL = 'Two different rows could get the same name.',
                HINT = 'Put text between the columns, as in report:{tenant}:{id}.';
        ELSE
            field := format('%s%I::text', prefix, part.part);
            IF part.is_followed THEN
                field := format('replace(%s, ''%%'', ''%%25'')', field);
                mark := left(part.next_part, 1);
                IF mark <> '%' THEN
                    field := format('replace(%s, %L, %L)', field, mark, regexp_replace(upper(encode(convert_to(mark, 'UTF8'), 'hex')), '(..)', '%\1', 'g'));
                END IF;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- name_expression returns the SQL that evaluates a template for a row.
CREATE FUNCTION wirefence.name_expression(template text, line text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(f.field, ' || ' ORDER BY f.place)
    FROM wirefence.name_fields(template, line || '.') WITH ORDINALITY AS f(field, place)
$$;

-- row_query returns a query that evaluates a template for a row in $1. It reads only the
-- columns of the template, because other columns may have types without a text, or large
-- values. Columns that were dropped are null: a name that the inner row lacks resolves to the
-- outer one. OFFSET 0 keeps the planner from copying the row for each column.
CREATE FUNCTION wirefence.row_query(template text) RETURNS text
LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT concat('SELECT (SELECT ',
        coalesce((SELECT string_agg(f.field, ' || ' ORDER BY f.place) FROM wirefence.name_fields(template, '') WITH ORDINALITY AS f(field, place)), 'NULL::text'),
        ' FROM (SELECT (given.line).* FROM (SELECT $1 AS line OFFSET 0) AS given) AS present) FROM (SELECT ',
        (SELECT string_agg(DISTINCT format('NULL::text AS %I', p.part), ', ') FROM wirefence.name_parts(template) AS p WHERE p.is_column), ') AS dropped')
$$;

-- guard_row is the trigger of a table whose rows have a resource each. It runs for rows for
-- whose resource wirefence.checked shows no check. The template is its argument; a second
-- argument says that the guard is in shadow mode. An update that changes the name of a row
-- needs the tokens of both names.
CREATE FUNCTION wirefence.guard_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    query CONSTANT text := wirefence.row_query(TG_ARGV[0]);
    resource text;
BEGIN
    IF TG_NARGS = 1 THEN
        PERFORM wirefence.check(wirefence.guarded_by(), NULL, false, false);
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE query INTO resource USING OLD;
        PERFORM wirefence.guard_row_unchecked(TG_RELID::regclass, TG_ARGV[0], resource, TG_NARGS > 1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE query INTO resource USING NEW;
        PERFORM wirefence.guard_row_unchecked(TG_RELID::regclass, TG_ARGV[0], resource, TG_NARGS > 1);
    END IF;
    RETURN NULL;
END
$$;

-- guard_row_unchecked is guard_unchecked for a row, given by the name that the template has
-- for it.
CREATE FUNCTION wirefence.guard_row_unchecked(target regclass, template text, resource text, shadow boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF octet_length(resource) BETWEEN 1 AND 255 THEN
        IF shadow THEN
            PERFORM wirefence.guard_shadowed(target, resource);
        ELSE
            PERFORM wirefence.guard_unchecked(target, resource);
        END IF;
    ELSIF shadow THEN
        PERFORM wirefence.guard_shadowed(target, template, 'WF002');
    ELSIF NOT wirefence.record_bypass(target, template) THEN
        RAISE EXCEPTION USING
            SCHEMA = wirefence.count_refusal(),
            ERRCODE = 'WF002',
            MESSAGE = 'a row of table ' || coalesce(target::text, 'null') || ' belongs to no resource',
            DETAIL = 'The table is guarded as ' || coalesce(wirefence.quote_name(template), 'null') || ', which for this row '
                || CASE WHEN resource IS NULL THEN 'has a column that is null or was dropped.'
                        ELSE 'gives a name of ' || octet_length(resource) || ' bytes; 1 to 255 are allowed.' END,
            HINT = 'Set the columns of the template to values that give a name, and declare them NOT NULL.';
    END IF;
END
$$;

-- class_of returns the class of a template whose rows judge, as job({job_id}), null for others.
CREATE FUNCTION wirefence.class_of(template text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN substring(template COLLATE "C" FROM '^([a-z_][a-z0-9_]{0,62})[(].*[{].*[)]$');

-- rows_query returns a query for the names that a template gives to the rows of some relations,
-- each name once. Values that only a collation calls equal are two.
CREATE FUNCTION wirefence.rows_query(template text, relations text[]) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    named CONSTANT text := split_part(template, '(', 1);
    kinds CONSTANT text[] := (SELECT r.kinds FROM wirefence.row_classes AS r WHERE r.class = named);
BEGIN
    RETURN (
        SELECT 'SELECT array_agg(name) FROM (' || string_agg(format('SELECT %L || %s || '')'' AS name FROM (SELECT DISTINCT %s FROM %s AS line) AS line',
                                                                    named || '(', t.name, t.columns, r.relation), ' UNION ') || ') AS named'
        FROM unnest(relations) AS r(relation), (
            SELECT string_agg(format(CASE kinds[m.at] WHEN 'text' THEN 'wirefence.encode_key(line.%I)' ELSE 'line.%I::text' END, m.part[1]), ' || '':'' || ' ORDER BY m.at) AS name,
                   string_agg(format(CASE kinds[m.at] WHEN 'text' THEN 'line.%1$I::text COLLATE "C" AS %1$I' ELSE 'line.%I' END, m.part[1]), ', ' ORDER BY m.at) AS columns
            FROM regexp_matches(template, '[{]([^{}]+)[}]', 'g') WITH ORDINALITY AS m(part, at)) AS t);
END
$$;

-- unchecked_row returns the first of these names for which the transaction was not checked.
CREATE FUNCTION wirefence.unchecked_row(names text[]) RETURNS text
LANGUAGE sql STABLE
RETURN (SELECT min(u.name) FROM unnest(names) AS u(name)
        WHERE u.name NOT IN (SELECT split_part(s.pair, '=', 1) FROM string_to_table(current_setting('wirefence.checked', true), ',') AS s(pair)));

-- guard_rows is the trigger of a table each of whose rows belongs to a row that judges. It runs
-- after a statement, by its transition tables. In an inheritance tree it runs after each row,
-- because a write through a parent fires no statement trigger of the child.
CREATE FUNCTION wirefence.guard_rows() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    names text[];
BEGIN
    IF TG_LEVEL = 'STATEMENT' THEN
        EXECUTE wirefence.rows_query(TG_ARGV[0], array_remove(ARRAY[CASE WHEN TG_OP <> 'DELETE' THEN 'wirefence_new' END,
                                                                    CASE WHEN TG_OP <> 'INSERT' THEN 'wirefence_old' END], NULL)) INTO names;
        PERFORM wirefence.require_rows(TG_RELID::regclass, TG_ARGV[0], names, TG_NARGS > 1);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE wirefence.rows_query(TG_ARGV[0], '{(SELECT ($1).*)}') INTO names USING OLD;
        PERFORM wirefence.require_rows(TG_RELID::regclass, TG_ARGV[0], names, TG_NARGS > 1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE wirefence.rows_query(TG_ARGV[0], '{(SELECT ($1).*)}') INTO names USING NEW;
        PERFORM wirefence.require_rows(TG_RELID::regclass, TG_ARGV[0], names, TG_NARGS > 1);
    END IF;
    RETURN NULL;
END
$$;

-- require_rows requires that the transaction was checked for the rows that judge, given by their
-- names. If it was not, it checks the fence of the session, with the rights of the writer.
CREATE FUNCTION wirefence.require_rows(target regclass, template text, names text[], shadow boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := wirefence.guarded_by();
    lacks_name CONSTANT boolean := array_position(names, NULL) IS NOT NULL;
    missing text := wirefence.unchecked_row(names);
    state text := 'WF002';
BEGIN
    IF missing IS NOT NULL AND carried IS NOT NULL AND NOT shadow THEN
        PERFORM wirefence.check(carried, NULL, false, false);
        missing := wirefence.unchecked_row(names);
    ELSIF shadow AND strpos(',' || carried, ',' || missing || '=') > 0 THEN
        state := left(wirefence.check(carried, NULL, false, true), 5);
    END IF;
    IF (missing IS NOT NULL OR lacks_name) AND state IS NOT NULL THEN
        PERFORM wirefence.refuse_row(target, template, missing, state, shadow);
    END IF;
END
$$;

-- refuse_row refuses a write to a row, given by the name of the row that judges, null if it has
-- none.
CREATE FUNCTION wirefence.refuse_row(target regclass, template text, name text, state text, shadow boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF shadow THEN
        PERFORM wirefence.guard_shadowed(target, template, state);
    ELSIF wirefence.record_bypass(target, template) THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM wirefence.row_classes AS r WHERE r.class = split_part(template, '(', 1) AND r.mode = 'shadow') THEN
        PERFORM wirefence.note('shadow', 'WF002', split_part(template, '(', 1) || '()', NULL, NULL, NULL, NULL, target::text);
    ELSIF name IS NULL THEN
        PERFORM wirefence.guard_row_unchecked(target, template, NULL, false);
    ELSE
        PERFORM wirefence.refuse_unguarded(target, name, wirefence.guarded_by());
    END IF;
END
$$;

-- guard_truncate refuses TRUNCATE of a table whose rows have a resource each.
CREATE FUNCTION wirefence.guard_truncate(target regclass, template text, shadow boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF shadow THEN
        PERFORM wirefence.guard_shadowed(target, template, 'WF006');
    ELSIF NOT wirefence.record_bypass(target, template) THEN
        RAISE EXCEPTION USING
            SCHEMA = wirefence.count_refusal(),
            ERRCODE = 'WF006',
            MESSAGE = 'cannot fence TRUNCATE of a table whose rows have a resource each',
            DETAIL = 'Table ' || coalesce(target::text, 'null') || ' is guarded as ' || coalesce(wirefence.quote_name(template), 'null') || '.',
            HINT = 'Use DELETE with the tokens of the rows. Members of wirefence_bypass may use TRUNCATE.';
    END IF;
END
$$;

-- guard_statement is the trigger before each statement on a table whose rows have a resource
-- each. It checks the whole fence of the session before the rows, so the locks of resources
-- are taken in order, and before locks of rows. As guard does, it qualifies every name.
CREATE FUNCTION wirefence.guard_statement() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.=) 1 AND wirefence.guarded_by() IS NOT NULL
       AND (pg_catalog.strpos(pg_catalog.current_setting('wirefence.checked', true),
                              pg_catalog.concat(',', wirefence.guarded_by(), ',')) OPERATOR(pg_catalog.>) 0) IS NOT TRUE THEN
        PERFORM wirefence.check(wirefence.guarded_by(), NULL, false, false);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' THEN
        PERFORM wirefence.guard_truncate(TG_RELID::pg_catalog.regclass, TG_ARGV[0], TG_NARGS OPERATOR(pg_catalog.>) 1);
    END IF;
    RETURN NULL;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.is_checked(text), wirefence.entry(text), wirefence.guard(), wirefence.guard_row(), wirefence.guard_rows(), wirefence.guard_statement(), wirefence.row_query(text),
    wirefence.rows_query(text, text[]), wirefence.unchecked_row(text[]), wirefence.require_rows(regclass, text, text[], boolean), wirefence.refuse_row(regclass, text, text, text, boolean),
    wirefence.guard_unchecked(regclass, text), wirefence.guard_row_unchecked(regclass, text, text, boolean),
    wirefence.guard_truncate(regclass, text, boolean), wirefence.guard_shadowed(regclass, text, text) TO PUBLIC;
