-- Guards: tables that have their writes checked by triggers, whatever way a
-- write took.
--
-- A guard must know at little cost what its transaction was checked for, by a
-- proxy's check or by another guard. Two things say it together. The variable
-- wirefence.passed lists the hashes of the resources' names until the
-- transaction ends, and a rollback to a savepoint takes back what was added
-- behind it. And the session's last value of the sequence wirefence.passed, which
-- only the owner's functions can set, is a hash of that list and of the time at
-- which the transaction began. A list that was set by hand, or that is another
-- transaction's, doesn't agree, and the guard checks anew. One thing remains: who
-- rolls back to a savepoint, and then sets the list that it had behind it, has it
-- taken for checked without its lock. Nothing that a session can't set undoes itself
-- in a rollback, short of a row; and who means to write with a token that isn't its
-- own finds the current one in the error.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Sequences are logged; where they need not be, this one isn't.
CREATE SEQUENCE wirefence.passed MINVALUE -9223372036854775808 START 0;
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER SEQUENCE wirefence.passed SET UNLOGGED;
    END IF;
END
$$;
GRANT SELECT ON SEQUENCE wirefence.passed TO PUBLIC;

-- name keeps the name of a table that has gone.
CREATE TABLE wirefence.guards (
    relation     regclass PRIMARY KEY,
    name         text NOT NULL,
    resource     text COLLATE "C" NOT NULL,
    template     boolean NOT NULL,
    protected_by text NOT NULL,
    protected_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE wirefence.guards IS 'Which tables are to be guarded. What stands guard are their triggers; wirefence.guarded() compares the two.';

-- bypasses has a row for each transaction in which a member of wirefence_bypass
-- wrote without the token that a guard wanted: the first such table of it.
CREATE TABLE wirefence.bypasses (
    xid         xid8 PRIMARY KEY,
    relation    regclass NOT NULL,
    resource    text COLLATE "C" NOT NULL,
    login       text NOT NULL,
    application text NOT NULL,
    address     inet,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE wirefence.bypasses IS 'Transactions in which a member of wirefence_bypass wrote to a guarded table without a token.';

GRANT SELECT ON wirefence.guards, wirefence.bypasses TO wirefence_issuer;

-- Only checks of resources that a guard may ask for leave a note: others need not
-- pay for it. Which those are each check reads here: were it said in the rows of
-- resource_locks, then a protect would hold up every grant until it has committed.
CREATE INDEX ON wirefence.guards (resource);
CREATE INDEX ON wirefence.guards (template) WHERE template;

-- any_guards reports whether a table was ever guarded here. The first protect
-- replaces it: as a constant it costs the checks of all others nothing.
CREATE FUNCTION wirefence.any_guards() RETURNS boolean
LANGUAGE sql STABLE
RETURN false;

-- has_passed reports whether the transaction was checked for a resource.
CREATE FUNCTION wirefence.has_passed(resource text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(strpos(coalesce(current_setting('wirefence.passed', true), ''), ',' || hashtextextended(resource COLLATE "C", 0) || ',') > 0
        AND currval('wirefence.passed') = interval_hash_extended(now() - timestamptz '1970-01-01 00:00:00+00',
            hashtextextended(current_setting('wirefence.passed', true), 0)), false)
$$;

-- note_passed adds resources to what the transaction was checked for, and the
-- fence as a whole, told apart by the seed. The caller has checked them in this
-- transaction. The name '' stands for bypassing, which is asked for no resource.
CREATE FUNCTION wirefence.note_passed(resources text[], carried text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    began CONSTANT interval := now() - timestamptz '1970-01-01 00:00:00+00';
    noted text := current_setting('wirefence.passed', true);
    resource text;
    mark text;
BEGIN
    IF noted IS NULL OR noted = ''
       OR currval('wirefence.passed') <> interval_hash_extended(began, hashtextextended(noted, 0)) THEN
        noted := ',';
    END IF;
    FOREACH resource IN ARRAY resources LOOP
        mark := hashtextextended(resource COLLATE "C", 0) || ',';
        IF strpos(noted, ',' || mark) = 0 THEN
            noted := noted || mark;
        END IF;
    END LOOP;
    IF carried IS NOT NULL THEN
        noted := noted || hashtextextended(carried COLLATE "C", 1) || ',';
    END IF;
    PERFORM set_config('wirefence.passed', noted, true),
            setval('wirefence.passed', interval_hash_extended(began, hashtextextended(noted, 0)));
    RETURN true;
END
$$;

-- note_guarded notes those of the resources that guards may ask for.
CREATE FUNCTION wirefence.note_guarded(resources text[], carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted CONSTANT text[] := ARRAY(SELECT u.resource FROM unnest(resources) AS u(resource)
                                   WHERE EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template OR g.resource = u.resource));
BEGIN
    IF noted <> '{}' AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM wirefence.note_passed(noted, carried);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION wirefence.check_all(fence text, default_resource text, required boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pairs record;
BEGIN
    IF fence IS NULL THEN
        fence := nullif(current_setting('wirefence.token', true), '');
        IF fence IS NULL THEN
            IF required THEN
                PERFORM wirefence.refuse_unfenced();
            END IF;
            RETURN;
        END IF;
    END IF;
    pairs := wirefence.parsed(fence, default_resource);
    PERFORM wirefence.judge(pairs.resources, pairs.tokens, pairs.sources);
    PERFORM wirefence.note_guarded(pairs.resources, fence);
END
$$;

-- check is as in 008, but that it leaves a note for guards: in the condition of
-- its one read, since each further statement of a function costs about as much.
-- Where the transaction was checked for nothing before, the note is made at once.
CREATE OR REPLACE FUNCTION wirefence.check(fence text, default_resource text, required boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried text := fence;
BEGIN
    IF carried IS NULL THEN
        carried := current_setting('wirefence.token', true);
    END IF;
    IF default_resource IS NOT NULL AND strpos(carried, '=') = 0 THEN
        carried := default_resource || '=' || carried;
    END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        BEGIN
            IF pg_try_advisory_xact_lock_shared(wirefence.lock_key(split_part(carried, '=', 1))) THEN
                PERFORM FROM wirefence.resource_locks AS l
                WHERE l.resource_id = split_part(carried, '=', 1) AND CASE
                    WHEN (l.fence = carried OR l.sourced_fence = carried) IS NOT TRUE THEN false
                    WHEN NOT wirefence.any_guards() THEN true
                    WHEN NOT EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template)
                         AND NOT EXISTS (SELECT FROM wirefence.guards AS g WHERE g.resource = l.resource_id)
                         OR current_setting('transaction_read_only') = 'on' THEN true
                    WHEN current_setting('wirefence.passed', true) <> '' THEN wirefence.note_passed(ARRAY[l.resource_id], carried)
                    ELSE setval('wirefence.passed', interval_hash_extended(now() - timestamptz '1970-01-01 00:00:00+00', hashtextextended(
                             set_config('wirefence.passed', ',' || hashtextextended(l.resource_id, 0) || ',' || hashtextextended(carried, 1) || ',', true),
                             0))) IS NOT NULL
                    END;
                IF FOUND THEN
                    RETURN;
                END IF;
                RAISE EXCEPTION 'not the frequent case';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
          AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM pg_advisory_xact_lock_shared(wirefence.lock_key(l.resource_id))
        FROM wirefence.resource_locks AS l
        WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried);
        IF FOUND THEN
            PERFORM FROM wirefence.resource_locks AS l
            WHERE l.resource_id = split_part(carried, '=', 1) AND (l.fence = carried OR l.sourced_fence = carried) FOR SHARE;
            IF FOUND THEN
                PERFORM wirefence.note_guarded(ARRAY[split_part(carried, '=', 1)], carried);
                RETURN;
            END IF;
        END IF;
    END IF;
    PERFORM wirefence.check_all(fence, default_resource, required);
END
$$;

-- bypassing reports whether the session's login is a member of wirefence_bypass,
-- by a grant: a superuser, whom PostgreSQL takes for a member of every role, is
-- not.
CREATE FUNCTION wirefence.bypassing() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE membership AS (
        SELECT m.roleid FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.member WHERE r.rolname = session_user
        UNION
        SELECT m.roleid FROM pg_auth_members AS m JOIN membership ON m.member = membership.roleid
    )
    SELECT EXISTS (SELECT FROM membership JOIN pg_roles AS r ON r.oid = membership.roleid WHERE r.rolname = 'wirefence_bypass')
$$;

-- bypassed records a transaction in which a member of wirefence_bypass writes
-- without a token, and reports whether it may.
CREATE FUNCTION wirefence.bypassed(target regclass, resource text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF wirefence.has_passed('') THEN
        RETURN true;
    ELSIF NOT wirefence.bypassing() THEN
        RETURN false;
    END IF;
    INSERT INTO wirefence.bypasses (xid, relation, resource, login, application, address)
    VALUES (pg_current_xact_id(), target, resource, session_user, current_setting('application_name'), inet_client_addr())
    ON CONFLICT DO NOTHING;
    PERFORM wirefence.note_passed('{""}');
    RETURN true;
END
$$;

-- refuse_unguarded raises WF002 for a guarded table.
CREATE FUNCTION wirefence.refuse_unguarded(target regclass, resource text, carried text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'WF002',
        MESSAGE = 'a fencing token is required for resource ' || wirefence.quoted(resource),
        DETAIL = 'Table ' || target::text || ' is guarded, and ' || CASE WHEN carried IS NULL
            THEN 'the session carries no fence.' ELSE 'the fence of the session names other resources only.' END,
        HINT = 'SET wirefence.token to a fence that names it, or write through the proxy with one. Members of wirefence_bypass may write without.';
END
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
        RETURN;
    ELSIF carried IS NOT NULL THEN
        pairs := wirefence.parsed(carried, NULL);
        IF resource COLLATE "C" = ANY (pairs.resources) THEN
            PERFORM wirefence.judge(pairs.resources, pairs.tokens, pairs.sources);
            PERFORM wirefence.note_passed(pairs.resources, carried);
            RETURN;
        END IF;
    END IF;
    IF NOT wirefence.bypassed(target, resource) THEN
        PERFORM wirefence.refuse_unguarded(target, resource, carried);
    END IF;
END
$$;

-- guard is the trigger of a table with one resource, the argument: before each
-- statement, and for rows that come into a partition which has no such trigger.
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
                             pg_catalog.concat(',', pg_catalog.hashtextextended(TG_ARGV[0], 0), ',')) OPERATOR(pg_catalog.>) 0
           AND pg_catalog.currval('wirefence.passed') OPERATOR(pg_catalog.=) pg_catalog.interval_hash_extended(
               pg_catalog.now() OPERATOR(pg_catalog.-) '1970-01-01 00:00:00+00'::pg_catalog.timestamptz,
               pg_catalog.hashtextextended(pg_catalog.current_setting('wirefence.passed', true), 0)) THEN
            RETURN NULL;
        END IF;
        EXIT WHEN checked;
        PERFORM wirefence.check(NULL, NULL, false);
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
    IF rebuilt IS DISTINCT FROM template THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'the braces of resource ' || wirefence.quoted(template) || ' don''t fit together',
            HINT = 'A template names columns, as in report:{tenant}:{id}; double a brace that is part of the name.';
    END IF;
END
$$;

-- row_name evaluates a template for one row, given as JSON.
CREATE FUNCTION wirefence.row_name(template text, line jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN bool_and(NOT p.is_column OR line ->> p.part IS NOT NULL)
                THEN string_agg(CASE WHEN p.is_column THEN line ->> p.part ELSE p.part END, '' ORDER BY p.place) END
    FROM wirefence.name_parts(template) WITH ORDINALITY AS p(part, is_column, place)
$$;

-- guard_row is the trigger of a table with a resource for each row, for rows of
-- which nothing says that their transaction was checked for them: the template
-- is the argument. Moving a row takes both names' tokens.
CREATE FUNCTION wirefence.guard_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.check(NULL, NULL, false);
    IF TG_OP <> 'INSERT' THEN
        PERFORM wirefence.guard_row_unchecked(TG_RELID::regclass, TG_ARGV[0], to_jsonb(OLD));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM wirefence.guard_row_unchecked(TG_RELID::regclass, TG_ARGV[0], to_jsonb(NEW));
    END IF;
    RETURN NULL;
END
$$;

-- guard_row_unchecked is guard_unchecked for a row, given as JSON.
CREATE FUNCTION wirefence.guard_row_unchecked(target regclass, template text, line jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    resource CONSTANT text := wirefence.row_name(template, line);
BEGIN
    IF octet_length(resource) BETWEEN 1 AND 255 THEN
        PERFORM wirefence.guard_unchecked(target, resource);
    ELSIF NOT wirefence.bypassed(target, template) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'WF002',
            MESSAGE = 'a row of table ' || target::text || ' belongs to no resource',
            DETAIL = 'The table is guarded as ' || wirefence.quoted(template) || ', which for this row '
                || CASE WHEN resource IS NULL THEN 'has a column that is null or has gone.'
                        ELSE 'makes a name of ' || octet_length(resource) || ' bytes; 1 to 255 are allowed.' END,
            HINT = 'Give the columns of the template values that make a name, and declare them NOT NULL.';
    END IF;
END
$$;

-- guard_truncate is what a guard does about a TRUNCATE where each row has a
-- resource of its own.
CREATE FUNCTION wirefence.guard_truncate(target regclass, template text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT wirefence.bypassed(target, template) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'WF006',
            MESSAGE = 'TRUNCATE can''t be fenced where each row has a resource of its own',
            DETAIL = 'Table ' || target::text || ' is guarded as ' || wirefence.quoted(template) || '.',
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
    IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' THEN
        PERFORM wirefence.guard_truncate(TG_RELID::pg_catalog.regclass, TG_ARGV[0]);
    ELSIF coalesce(pg_catalog.current_setting('wirefence.token', true), '') OPERATOR(pg_catalog.<>) ''
          AND (pg_catalog.strpos(coalesce(pg_catalog.current_setting('wirefence.passed', true), ''),
                   pg_catalog.concat(',', pg_catalog.hashtextextended(pg_catalog.current_setting('wirefence.token', true), 1), ',')) OPERATOR(pg_catalog.>) 0
               AND pg_catalog.currval('wirefence.passed') OPERATOR(pg_catalog.=) pg_catalog.interval_hash_extended(
                   pg_catalog.now() OPERATOR(pg_catalog.-) '1970-01-01 00:00:00+00'::pg_catalog.timestamptz,
                   pg_catalog.hashtextextended(pg_catalog.current_setting('wirefence.passed', true), 0))) IS NOT TRUE THEN
        PERFORM wirefence.check(NULL, NULL, false);
    END IF;
    RETURN NULL;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.guard(), wirefence.guard_row(), wirefence.guard_statement(),
    wirefence.guard_unchecked(regclass, text), wirefence.guard_row_unchecked(regclass, text, jsonb),
    wirefence.guard_truncate(regclass, text) TO PUBLIC;

-- passed_condition is the SQL by which a row's trigger finds that the
-- transaction was checked for the name, itself an SQL expression. It is all
-- built-in functions, for it is evaluated for every row.
CREATE FUNCTION wirefence.passed_condition(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT '(strpos(coalesce(current_setting(''wirefence.passed'', true), ''''), '','' || hashtextextended((' || name || ') COLLATE "C", 0) || '','') > 0'
        || ' AND currval(''wirefence.passed''::regclass) = interval_hash_extended(now() - timestamptz ''1970-01-01 00:00:00+00'','
        || ' hashtextextended(current_setting(''wirefence.passed'', true), 0)))'
$$;

-- name_expression is the SQL by which a template is evaluated for a row.
CREATE FUNCTION wirefence.name_expression(template text, line text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(CASE WHEN p.is_column THEN format('%s.%I::text', line, p.part) ELSE quote_literal(p.part) || '::text' END,
                      ' || ' ORDER BY p.place)
    FROM wirefence.name_parts(template) WITH ORDINALITY AS p(part, is_column, place)
$$;

-- check_template raises what is wrong with the columns of a template. Their
-- texts must not depend on a setting, nor differ between equal values.
CREATE FUNCTION wirefence.check_template(target regclass, template text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    col record;
    base regtype;
BEGIN
    FOR col IN
        SELECT p.part AS name, a.atttypid::regtype AS type, a.attgenerated
        FROM wirefence.name_parts(template) AS p
        LEFT JOIN pg_attribute AS a ON a.attrelid = target AND a.attname = p.part AND a.attnum > 0 AND NOT a.attisdropped
        WHERE p.is_column
    LOOP
        IF col.type IS NULL THEN
            RAISE undefined_column USING
                MESSAGE = 'table ' || target::text || ' has no column ' || wirefence.quoted(col.name),
                DETAIL = 'The resource ' || wirefence.quoted(template) || ' names it.',
                HINT = 'It has ' || (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) FROM pg_attribute AS a
                                     WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped) || '.';
        END IF;
        base := col.type;
        WHILE (SELECT t.typtype = 'd' FROM pg_type AS t WHERE t.oid = base) LOOP
            base := (SELECT t.typbasetype FROM pg_type AS t WHERE t.oid = base);
        END LOOP;
        IF col.attgenerated = 'v' THEN
            RAISE feature_not_supported USING MESSAGE = 'column ' || wirefence.quoted(col.name) || ' is generated when it is read',
                HINT = 'Name the columns that it is made of, or store it.';
        ELSIF base NOT IN ('smallint'::regtype, 'integer', 'bigint', 'text', 'varchar', 'name', 'uuid', 'boolean', 'oid')
              AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid = base AND t.typtype = 'e') THEN
            RAISE datatype_mismatch USING
                MESSAGE = 'column ' || wirefence.quoted(col.name) || ' of type ' || col.type::text || ' can''t be part of a resource''s name',
                HINT = 'Its text may differ for one value. Integers, text, varchar, uuid, boolean and enums can be.';
        END IF;
    END LOOP;
END
$$;

-- family lists a table with all its partitions and heirs.
CREATE FUNCTION wirefence.family(target regclass) RETURNS TABLE (member regclass, kind "char", is_partition boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE family AS (
        SELECT target::oid AS member
        UNION
        SELECT i.inhrelid FROM pg_inherits AS i JOIN family ON i.inhparent = family.member
    )
    SELECT c.oid::regclass, c.relkind, c.relispartition AND c.oid <> target
    FROM family JOIN pg_class AS c ON c.oid = family.member
    ORDER BY c.oid <> target, c.oid::regclass::text
$$;

-- guard_triggers are the triggers of guards, but for those of a partition that
-- come with its parent's.
CREATE VIEW wirefence.guard_triggers AS
SELECT t.tgrelid::regclass AS relation, t.tgname AS name, p.proname AS function, t.tgenabled AS enabled,
       CASE WHEN t.tgnargs > 0 THEN convert_from(substr(t.tgargs, 1, position('\x00'::bytea IN t.tgargs) - 1), getdatabaseencoding()) END AS resource,
       t.tgparentid <> 0 AS from_parent
FROM pg_trigger AS t
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE p.pronamespace = 'wirefence'::regnamespace AND p.proname IN ('guard', 'guard_row', 'guard_statement');

-- may_guard raises why a role can't have a table guarded.
CREATE FUNCTION wirefence.may_guard(target regclass, caller name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT f.member, c.relkind, c.relpersistence, c.relowner, c.relnamespace::regnamespace::text AS schema
        FROM wirefence.family(target) AS f JOIN pg_class AS c ON c.oid = f.member
    LOOP
        IF member.relkind NOT IN ('r', 'p') OR member.relpersistence = 't' OR member.schema IN ('wirefence', 'pg_catalog') THEN
            RAISE wrong_object_type USING
                MESSAGE = member.member::text || ' can''t be guarded',
                DETAIL = 'Guards are for tables and their partitions: not for views, foreign and temporary tables, nor those of Wirefence and of the system.';
        ELSIF NOT pg_has_role(caller, member.relowner, 'USAGE') THEN
            RAISE insufficient_privilege USING
                MESSAGE = 'only the owner of ' || member.member::text || ' may guard it',
                HINT = 'Connect as ' || quote_ident(pg_get_userbyid(member.relowner)) || ', or GRANT '
                    || quote_ident(pg_get_userbyid(member.relowner)) || ' TO ' || quote_ident(caller) || '.';
        END IF;
    END LOOP;
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

-- triggers_of returns the statements that guard one table of a family. Triggers
-- for rows come to a partition from its parent, to later ones too; and so that a
-- later partition of a table with one resource is guarded, its rows are looked at.
CREATE FUNCTION wirefence.triggers_of(member regclass, kind "char", is_partition boolean, resource text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    for_row CONSTANT text := 'CREATE TRIGGER wirefence_guard_%s AFTER %s ON %s FOR EACH ROW WHEN ((%s) IS NOT TRUE) EXECUTE FUNCTION wirefence.%s(%L)';
    for_statement CONSTANT text := 'CREATE TRIGGER wirefence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION wirefence.%s(%L)';
    of_new text;
    of_old text;
BEGIN
    IF NOT wirefence.is_template(resource) THEN
        resource := wirefence.plain_name(resource);
        RETURN NEXT format(for_statement, member, 'guard', resource);
        IF kind = 'p' AND NOT is_partition THEN
            RETURN NEXT format(for_row, 'row', 'INSERT OR UPDATE OR DELETE', member,
                               wirefence.passed_condition(quote_literal(resource) || '::text'), 'guard', resource);
        END IF;
        RETURN;
    END IF;
    RETURN NEXT format(for_statement, member, 'guard_statement', resource);
    IF NOT is_partition THEN
        of_new := wirefence.passed_condition(wirefence.name_expression(resource, 'NEW'));
        of_old := wirefence.passed_condition(wirefence.name_expression(resource, 'OLD'));
        RETURN NEXT format(for_row, 'insert', 'INSERT', member, of_new, 'guard_row', resource);
        RETURN NEXT format(for_row, 'update', 'UPDATE', member, of_new || ' AND ' || of_old, 'guard_row', resource);
        RETURN NEXT format(for_row, 'delete', 'DELETE', member, of_old, 'guard_row', resource);
    END IF;
END
$$;

-- unguarding returns the statements that remove the guards of a table, its
-- partitions and its heirs.
CREATE FUNCTION wirefence.unguarding(target regclass) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('DROP TRIGGER %I ON %s', g.name, g.relation)
    FROM wirefence.family(target) AS f JOIN wirefence.guard_triggers AS g ON g.relation = f.member
    WHERE NOT g.from_parent
$$;

-- plan_protect checks whether a role can have a table guarded for a resource and
-- returns the statements, which it runs with its own rights.
CREATE FUNCTION wirefence.plan_protect(target regclass, resource text, caller name) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted CONSTANT text := CASE WHEN wirefence.is_template(resource) THEN resource ELSE wirefence.plain_name(resource) END;
    other record;
BEGIN
    IF target IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'the table to protect is null';
    END IF;
    PERFORM wirefence.may_guard(target, caller);
    PERFORM wirefence.check_template(target, resource);
    SELECT g.relation, g.resource INTO other
    FROM wirefence.family(target) AS f JOIN wirefence.guard_triggers AS g ON g.relation = f.member
    WHERE g.resource <> wanted LIMIT 1;
    IF FOUND THEN
        RAISE duplicate_object USING
            MESSAGE = other.relation::text || ' is guarded already, for resource ' || wirefence.quoted(other.resource),
            HINT = format('SELECT wirefence.unprotect(%L) first.', other.relation);
    END IF;
    RETURN QUERY SELECT * FROM wirefence.unguarding(target);
    RETURN QUERY SELECT t.* FROM wirefence.family(target) AS f, wirefence.triggers_of(f.member, f.kind, f.is_partition, resource) AS t;
END
$$;

-- plan_unprotect is plan_protect for the removal.
CREATE FUNCTION wirefence.plan_unprotect(target regclass, caller name) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target) THEN
        RAISE undefined_object USING MESSAGE = coalesce('table ' || target::text || ' is not guarded', 'the table to unprotect is null');
    ELSIF EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target AND g.from_parent) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is guarded as a partition',
            HINT = 'Unprotect the table that it is a partition of.';
    END IF;
    PERFORM wirefence.may_guard(target, caller);
    RETURN QUERY SELECT * FROM wirefence.unguarding(target);
END
$$;

-- declare_guard notes that a table is to be guarded. That the triggers are there
-- already is what shows that the caller may say so.
CREATE FUNCTION wirefence.declare_guard(target regclass, resource text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    templated CONSTANT boolean := wirefence.is_template(resource);
    wanted CONSTANT text := CASE WHEN templated THEN resource ELSE wirefence.plain_name(resource) END;
BEGIN
    IF NOT EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target AND g.resource = wanted) THEN
        RAISE insufficient_privilege USING MESSAGE = 'table ' || target::text || ' has no guard for resource ' || wirefence.quoted(wanted),
            HINT = 'SELECT wirefence.protect(...) makes one.';
    END IF;
    DELETE FROM wirefence.guards AS g -- the table that this one takes the place of
    WHERE g.name = target::text AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = g.relation);
    INSERT INTO wirefence.guards AS g (relation, name, resource, template, protected_by)
    VALUES (target, target::text, wanted, templated, session_user)
    ON CONFLICT (relation) DO UPDATE
    SET name = excluded.name, resource = excluded.resource, template = excluded.template,
        protected_by = excluded.protected_by, protected_at = excluded.protected_at;
    IF NOT wirefence.any_guards() THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('wirefence.any_guards', 0)); -- two at once would fail
        CREATE OR REPLACE FUNCTION wirefence.any_guards() RETURNS boolean LANGUAGE sql STABLE RETURN true;
    END IF;
END
$$;

-- retract_guard forgets the tables of a family whose triggers are gone.
CREATE FUNCTION wirefence.retract_guard(target regclass) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM wirefence.guards AS g USING wirefence.family(target) AS f
    WHERE g.relation = f.member AND NOT EXISTS (SELECT FROM wirefence.guard_triggers AS t WHERE t.relation = f.member)
$$;

-- protect guards a table, its partitions and its heirs: from then on, a write
-- wants a token of the resource, or, with a template such as
-- report:{tenant}:{id}, of the resource of each row. Called again it repairs
-- guards, and takes in what the table has got since.
CREATE FUNCTION wirefence.protect("table" regclass, resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN SELECT * FROM wirefence.plan_protect("table", resource, current_user) LOOP
        EXECUTE statement;
    END LOOP;
    PERFORM wirefence.declare_guard("table", resource);
END
$$;

-- unprotect removes the guards of a table, its partitions and its heirs.
CREATE FUNCTION wirefence.unprotect("table" regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN SELECT * FROM wirefence.plan_unprotect("table", current_user) LOOP
        EXECUTE statement;
    END LOOP;
    PERFORM wirefence.retract_guard("table");
END
$$;

-- guarded lists the tables that are to be guarded, those that are guarded
-- nevertheless, and what is wrong with each; null where nothing is.
CREATE FUNCTION wirefence.guarded() RETURNS TABLE (relation text, resource text, declared_as text, protected_by text, protected_at timestamptz, fault text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH declared AS (
        SELECT coalesce(f.member, g.relation) AS relation, f.kind, g.resource, g.template, g.name, g.protected_by, g.protected_at,
               coalesce(f.member <> g.relation, false) AS descends
        FROM wirefence.guards AS g LEFT JOIN LATERAL wirefence.family(g.relation) AS f ON true
    ), standing AS (
        SELECT t.relation, min(t.resource) AS resource, bool_or(t.function <> 'guard') AS template,
               bool_or(t.name = 'wirefence_guard') AS statements, count(*) FILTER (WHERE t.name <> 'wirefence_guard') AS rows,
               bool_or(t.enabled IN ('D', 'R')) AS disabled
        FROM wirefence.guard_triggers AS t GROUP BY t.relation
    ), joined AS (
        SELECT coalesce(d.relation, s.relation) AS relation, coalesce(d.resource, s.resource) AS resource, d.name, d.protected_by, d.protected_at,
               CASE
                   WHEN d.relation IS NULL THEN 'guarded, but not declared: protect it again'
                   WHEN d.kind IS NULL THEN 'the table has gone: protect the one that took its place, or unprotect it'
                   WHEN s.relation IS NULL AND d.descends THEN 'not guarded, though it inherits from a guarded table: protect that again'
                   WHEN s.relation IS NULL THEN 'its triggers have gone: protect it again'
                   WHEN s.resource <> d.resource THEN 'guarded for another resource, ' || wirefence.quoted(s.resource)
                   WHEN s.disabled THEN 'a trigger of its guard is disabled: protect it again'
                   WHEN NOT s.statements THEN 'a later partition: its rows are guarded, TRUNCATE is not: protect the parent again'
                   WHEN s.rows < CASE WHEN d.template THEN 3 WHEN d.kind = 'p' THEN 1 ELSE 0 END
                   THEN 'a trigger of its guard has gone: protect it again'
                   WHEN EXISTS (SELECT FROM wirefence.name_parts(d.resource) AS p
                                WHERE d.template AND p.is_column AND NOT EXISTS (
                                    SELECT FROM pg_attribute AS a
                                    WHERE a.attrelid = d.relation AND a.attname = p.part AND NOT a.attisdropped))
                   THEN 'a column of the template was renamed: unprotect it, and protect it by the new name'
               END AS fault
        FROM declared AS d FULL JOIN standing AS s ON s.relation = d.relation
    )
    SELECT CASE WHEN EXISTS (SELECT FROM pg_class AS c WHERE c.oid = j.relation) THEN j.relation::text ELSE j.name END,
           j.resource, j.name, j.protected_by, j.protected_at, j.fault
    FROM joined AS j ORDER BY 1
$$;

GRANT EXECUTE ON FUNCTION wirefence.guarded() TO wirefence_issuer;
GRANT EXECUTE ON FUNCTION wirefence.protect(regclass, text), wirefence.unprotect(regclass), wirefence.plan_protect(regclass, text, name),
    wirefence.plan_unprotect(regclass, name), wirefence.declare_guard(regclass, text), wirefence.retract_guard(regclass) TO PUBLIC;
