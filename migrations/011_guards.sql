-- Guards: tables that have their writes checked by triggers, whatever way a
-- write took.
SET LOCAL search_path = pg_catalog, pg_temp;

-- bypasses has a row for each transaction in which a member of wirefence_bypass
-- wrote without the token that a guard wanted: the first such table of it. A database
-- that was restored elsewhere may see a transaction's number again.
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

-- guard_triggers are the triggers of guards, but for those of a partition that
-- come with its parent's.
CREATE VIEW wirefence.guard_triggers AS
SELECT t.tgrelid::regclass AS relation, t.tgname AS name, t.tgnargs > 1 AS shadow, p.proname AS function, t.tgenabled AS enabled,
       CASE WHEN t.tgnargs > 0 THEN convert_from(substr(t.tgargs, 1, position(decode('00', 'hex') IN t.tgargs) - 1), getdatabaseencoding()) END AS resource,
       t.tgparentid <> 0 AS from_parent
FROM pg_trigger AS t
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE p.pronamespace = 'wirefence'::regnamespace AND p.proname IN ('guard', 'guard_row', 'guard_statement');

-- family lists a table with all its partitions and heirs, parents first.
CREATE FUNCTION wirefence.family(target regclass) RETURNS TABLE (member regclass, kind "char", is_partition boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
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

-- bypassing reports whether the session's login is a member of wirefence_bypass,
-- by a grant: a superuser, whom PostgreSQL takes for a member of every role, is
-- not. Nor is, from 16 on, who may but grant the role, as who has made it may.
CREATE FUNCTION wirefence.bypassing() RETURNS boolean
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

-- bypassed records a transaction in which a member of wirefence_bypass writes
-- without a token, and reports whether it may.
CREATE FUNCTION wirefence.bypassed(target regclass, resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF wirefence.has_passed('', 'b') THEN
        RETURN true;
    ELSIF NOT wirefence.bypassing() THEN
        RETURN false;
    END IF;
    INSERT INTO wirefence.bypasses (xid, relation, resource, login, application, address)
    VALUES (pg_current_xact_id(), target::text, resource, session_user, current_setting('application_name'), inet_client_addr())
    ON CONFLICT DO NOTHING;
    PERFORM wirefence.note_passed('{""}', kind => 'b');
    RETURN true;
END
$$;

-- refuse_unguarded raises WF002 for a guarded table.
CREATE FUNCTION wirefence.refuse_unguarded(target regclass, resource text, carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal(),
        ERRCODE = 'WF002',
        MESSAGE = 'a fencing token is required for resource ' || coalesce(wirefence.quoted(resource), 'null'),
        DETAIL = 'Table ' || coalesce(target::text, 'null') || ' is guarded, and ' || CASE WHEN carried IS NULL
            THEN 'the session carries no fence.' ELSE 'the fence of the session names other resources only.' END,
        HINT = 'SET wirefence.token to a fence that names it, or write through the proxy with one. Members of wirefence_bypass may write without.';
END
$$;

-- has_changed reports whether the session variable holds something else than what was
-- looked at last in this transaction.
CREATE FUNCTION wirefence.has_changed() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN NOT wirefence.has_passed(coalesce(current_setting('wirefence.token', true), ''), 'v');

-- stands_for reports whether a table has a guard, in shadow mode or not, that may ask for
-- a resource.
CREATE FUNCTION wirefence.stands_for(target regclass, resource text, shadow boolean) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM wirefence.guard_triggers AS g
                   WHERE g.relation = target AND g.shadow = stands_for.shadow AND (g.resource = stands_for.resource OR g.function <> 'guard'))
$$;

-- guard_unchecked is what a guard does when nothing says that its transaction was
-- checked for the resource, though the fence of the session was checked just before:
-- that doesn't name it, or the guard isn't declared, as after the restore of a part
-- of a dump.
CREATE FUNCTION wirefence.guard_unchecked(target regclass, resource text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := nullif(current_setting('wirefence.token', true), '');
    pairs record;
BEGIN
    IF wirefence.has_passed(resource) THEN
        IF wirefence.has_changed() THEN
            PERFORM wirefence.check_all(carried, NULL, NULL), wirefence.note_passed('{}');
        END IF;
        RETURN;
    ELSIF carried IS NOT NULL THEN
        pairs := wirefence.parsed(carried, NULL);
        IF resource COLLATE "C" = ANY (pairs.resources) THEN
            PERFORM wirefence.check_all(carried, NULL, NULL), wirefence.note_passed(pairs.resources);
            RETURN;
        END IF;
    END IF;
    IF NOT wirefence.stands_for(target, resource, false) THEN
        PERFORM wirefence.refuse_unguarded(target, resource, carried);
    ELSIF wirefence.bypassed(target, resource) THEN
        RETURN;
    ELSIF NOT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.resource_id = resource AND l.mode = 'shadow') THEN
        PERFORM wirefence.refuse_unguarded(target, resource, carried);
    END IF;
    PERFORM wirefence.note('shadow', 'WF002', resource, NULL, NULL, NULL, NULL, target::text), wirefence.note_passed(ARRAY[resource]);
END
$$;

-- pair_of is the token and the source that a fence has for a resource, null if it has
-- none; is_malformed says that it can't be read, which isn't counted as a refusal.
CREATE FUNCTION wirefence.pair_of(fence text, resource text, OUT token bigint, OUT source text, OUT is_malformed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.observing(true);
    SELECT u.token, u.source INTO token, source
    FROM (SELECT p.* FROM wirefence.parsed(fence, NULL) AS p) AS f,
         unnest(f.resources, f.tokens, f.sources) AS u(resource, token, source)
    WHERE u.resource = pair_of.resource COLLATE "C";
    PERFORM wirefence.observing(false);
EXCEPTION WHEN SQLSTATE 'WF004' THEN
    is_malformed := true;
END
$$;

-- guard_shadowed is guard_unchecked for a guard in shadow mode: it only looks, and notes
-- once in a transaction what it would refuse; of a
-- transaction that has much of that, the first. It believes guards that are there only,
-- since anybody may call it. The state is that of a refusal which needs no token.
CREATE FUNCTION wirefence.guard_shadowed(target regclass, resource text, state text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := nullif(current_setting('wirefence.token', true), '');
    token bigint;
    source text;
    is_malformed boolean;
BEGIN
    IF pg_trigger_depth() = 0 OR NOT wirefence.stands_for(target, resource, true) OR wirefence.has_passed(resource) AND (carried IS NULL OR NOT wirefence.has_changed())
       OR wirefence.has_passed(resource, 's') OR wirefence.has_passed('', 's') OR wirefence.bypassed(target, resource)
       OR current_setting('transaction_read_only') = 'on' THEN
        RETURN;
    END IF;
    IF state IS NULL AND carried IS NOT NULL THEN
        SELECT p.* INTO token, source, is_malformed FROM wirefence.pair_of(carried, resource) AS p;
        IF is_malformed THEN
            state := 'WF004';
        ELSIF token IS NOT NULL OR wirefence.has_passed(resource) THEN
            state := 'looked at';
        END IF;
    END IF;
    state := coalesce(state, 'WF002');
    IF length(current_setting('wirefence.passed', true)) > 1000 THEN
        resource := '';
    END IF;
    PERFORM wirefence.note_passed(ARRAY[resource], kind => 's');
    IF state ~ '^WF00[1-8]$' THEN
        PERFORM wirefence.note('shadow', state, left(nullif(resource, ''), 255), NULL, NULL, NULL, NULL, target::text);
    ELSIF token IS NOT NULL AND resource <> '' THEN
        PERFORM wirefence.only_look(ARRAY[resource], ARRAY[token], ARRAY[source], true, target::text);
    END IF;
END
$$;

-- guard is the trigger of a table with one resource, the argument: before each
-- statement, and for rows that come into a partition which has no such trigger. A
-- second argument says that it is in shadow mode.
--
-- It runs as the writer and sets no search_path, which would cost as much as the
-- rest: so every name in it is qualified, operators too.
CREATE FUNCTION wirefence.guard() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    checked boolean := false;
BEGIN
    LOOP
        IF pg_catalog.strpos(coalesce(pg_catalog.current_setting('wirefence.passed', true), ''),
                             pg_catalog.concat(',', pg_catalog.hashtextextended(TG_ARGV[0], 8604534342903230051), ',')) OPERATOR(pg_catalog.>) 0
           AND pg_catalog.strpos(pg_catalog.current_setting('wirefence.passed', true), pg_catalog.concat(',v', pg_catalog.hashtextextended(
                   coalesce(pg_catalog.current_setting('wirefence.token', true), ''), 8604534342903230051), ',')) OPERATOR(pg_catalog.>) 0 THEN
            RETURN NULL;
        END IF;
        EXIT WHEN checked;
        IF TG_NARGS OPERATOR(pg_catalog.>) 1 THEN
            PERFORM wirefence.guard_shadowed(TG_RELID::pg_catalog.regclass, TG_ARGV[0]);
            RETURN NULL;
        END IF;
        PERFORM wirefence.check(NULL, NULL, false, false);
        checked := true;
    END LOOP;
    PERFORM wirefence.guard_unchecked(TG_RELID::pg_catalog.regclass, TG_ARGV[0]);
    RETURN NULL;
END
$$;

-- name_parts takes a template such as report:{tenant}:{id} apart: literal texts
-- and columns, in order. A doubled brace stands for the brace itself.
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
            MESSAGE = 'the braces of resource ' || wirefence.quoted(template) || ' don''t fit together',
            HINT = 'A template names columns, as in report:{tenant}:{id}; double a brace that is part of the name.';
    END IF;
END
$$;

-- is_template reports whether a resource names columns, and raises what is wrong
-- with its form.
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

-- plain_name is the name that a resource without columns stands for.
CREATE FUNCTION wirefence.plain_name(resource text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(p.part, '' ORDER BY p.place)
    FROM wirefence.name_parts(resource) WITH ORDINALITY AS p(part, is_column, place)
$$;

-- name_fields takes a template apart for the columns of a line, given by a prefix: the
-- SQL of each part. So that two rows never make one name, a column ends for sure
-- where the text behind it begins: the first character of that is percent-encoded in the
-- column's value, and so is the percent sign itself. The last column needs none of it.
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
                MESSAGE = 'columns of resource ' || wirefence.quoted(template) || ' stand side by side',
                DETAIL = 'Two rows could make one name.',
                HINT = 'Put a text between them, as in report:{tenant}:{id}.';
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

-- name_expression is the SQL by which a template is evaluated for a row.
CREATE FUNCTION wirefence.name_expression(template text, line text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(f.field, ' || ' ORDER BY f.place)
    FROM wirefence.name_fields(template, line || '.') WITH ORDINALITY AS f(field, place)
$$;

-- row_query does so for a row in $1: others of its columns may hold what has no text, or
-- too much. Nulls of the same names stand for columns that have gone. OFFSET 0 keeps the
-- planner from copying the row for each column.
CREATE FUNCTION wirefence.row_query(template text) RETURNS text
LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT concat('SELECT (SELECT ',
        coalesce((SELECT string_agg(f.field, ' || ' ORDER BY f.place) FROM wirefence.name_fields(template, '') WITH ORDINALITY AS f(field, place)), 'NULL::text'),
        ' FROM (SELECT (given.line).* FROM (SELECT $1 AS line OFFSET 0) AS given) AS there) FROM (SELECT ',
        (SELECT string_agg(DISTINCT format('NULL::text AS %I', p.part), ', ') FROM wirefence.name_parts(template) AS p WHERE p.is_column), ') AS gone')
$$;

-- guard_row is the trigger of a table with a resource for each row, for rows of
-- which nothing says that their transaction was checked for them: the template
-- is the argument, and a second one says that it is in shadow mode. Moving a row
-- takes both names' tokens.
CREATE FUNCTION wirefence.guard_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    query CONSTANT text := wirefence.row_query(TG_ARGV[0]);
    resource text;
BEGIN
    IF TG_NARGS = 1 THEN
        PERFORM wirefence.check(NULL, NULL, false, false);
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

-- guard_row_unchecked is guard_unchecked for a row, given by what the template makes
-- of it.
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
    ELSIF NOT wirefence.bypassed(target, template) THEN
        RAISE EXCEPTION USING
            SCHEMA = wirefence.count_refusal(),
            ERRCODE = 'WF002',
            MESSAGE = 'a row of table ' || coalesce(target::text, 'null') || ' belongs to no resource',
            DETAIL = 'The table is guarded as ' || coalesce(wirefence.quoted(template), 'null') || ', which for this row '
                || CASE WHEN resource IS NULL THEN 'has a column that is null or has gone.'
                        ELSE 'makes a name of ' || octet_length(resource) || ' bytes; 1 to 255 are allowed.' END,
            HINT = 'Give the columns of the template values that make a name, and declare them NOT NULL.';
    END IF;
END
$$;

-- guard_truncate is what a guard does about a TRUNCATE where each row has a
-- resource of its own.
CREATE FUNCTION wirefence.guard_truncate(target regclass, template text, shadow boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF shadow THEN
        PERFORM wirefence.guard_shadowed(target, template, 'WF006');
    ELSIF NOT wirefence.bypassed(target, template) THEN
        RAISE EXCEPTION USING
            SCHEMA = wirefence.count_refusal(),
            ERRCODE = 'WF006',
            MESSAGE = 'TRUNCATE can''t be fenced where each row has a resource of its own',
            DETAIL = 'Table ' || coalesce(target::text, 'null') || ' is guarded as ' || coalesce(wirefence.quoted(template), 'null') || '.',
            HINT = 'DELETE the rows with their tokens. Members of wirefence_bypass may truncate.';
    END IF;
END
$$;

-- guard_statement is the trigger before each statement on a table with a
-- resource for each row. It has the fence of the session checked, all of it, ahead
-- of the rows: locks are taken in order, and before those of rows. It is written as
-- guard is.
CREATE FUNCTION wirefence.guard_statement() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.=) 1 AND coalesce(pg_catalog.current_setting('wirefence.token', true), '') OPERATOR(pg_catalog.<>) ''
       AND (pg_catalog.strpos(coalesce(pg_catalog.current_setting('wirefence.passed', true), ''), pg_catalog.concat(',v', pg_catalog.hashtextextended(
                pg_catalog.current_setting('wirefence.token', true), 8604534342903230051), ',')) OPERATOR(pg_catalog.>) 0) IS NOT TRUE THEN
        PERFORM wirefence.check(NULL, NULL, false, false);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' THEN
        PERFORM wirefence.guard_truncate(TG_RELID::pg_catalog.regclass, TG_ARGV[0], TG_NARGS OPERATOR(pg_catalog.>) 1);
    END IF;
    RETURN NULL;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.guard(), wirefence.guard_row(), wirefence.guard_statement(), wirefence.row_query(text),
    wirefence.guard_unchecked(regclass, text), wirefence.guard_row_unchecked(regclass, text, text, boolean),
    wirefence.guard_truncate(regclass, text, boolean), wirefence.guard_shadowed(regclass, text, text) TO PUBLIC;
