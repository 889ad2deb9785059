-- protect, unprotect and guarded: which tables have guards, and for which resource.
SET LOCAL search_path = pg_catalog, pg_temp;

-- check_template raises an error if a column of a template cannot be used. The text of a
-- column must not depend on a setting, nor differ between equal values.
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
                MESSAGE = 'table ' || target::text || ' has no column ' || wirefence.quote_name(col.name),
                DETAIL = 'Resource ' || wirefence.quote_name(template) || ' names this column.',
                HINT = 'The table has ' || (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) FROM pg_attribute AS a
                                     WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped) || '.';
        END IF;
        base := col.type;
        WHILE (SELECT t.typtype = 'd' FROM pg_type AS t WHERE t.oid = base) LOOP
            base := (SELECT t.typbasetype FROM pg_type AS t WHERE t.oid = base);
        END LOOP;
        IF col.attgenerated = 'v' THEN
            RAISE feature_not_supported USING MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' is a virtual generated column',
                HINT = 'Name the columns that it is computed from, or make it STORED.';
        ELSIF base NOT IN ('smallint'::regtype, 'integer', 'bigint', 'text', 'varchar', 'name', 'uuid', 'boolean', 'oid')
              AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid = base AND t.typtype = 'e') THEN
            RAISE datatype_mismatch USING
                MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' of type ' || col.type::text || ' can''t be part of a resource''s name',
                DETAIL = 'Equal values of this type may have different texts.',
                HINT = 'Use columns of an integer type, text, varchar, uuid, boolean or an enum.';
        END IF;
    END LOOP;
    PERFORM wirefence.check_row_template(target, template);
END
$$;

-- check_row_template raises an error if a template that names rows, as job({job_id}), does not
-- fit their class.
CREATE FUNCTION wirefence.check_row_template(target regclass, template text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    named CONSTANT text := wirefence.class_of(template);
    wanted CONSTANT text[] := (SELECT r.kinds FROM wirefence.row_classes AS r WHERE r.class = named);
    parts text;
    kinds text[];
BEGIN
    IF named IS NULL THEN
        RETURN;
    ELSIF wanted IS NULL THEN
        RAISE undefined_object USING
            MESSAGE = 'class ' || wirefence.quote_name(named) || ' is not declared',
            DETAIL = 'Resource ' || wirefence.quote_name(template) || ' names rows of this class.',
            HINT = 'Declare it first: wirefence rows declare ' || named || ' --table TABLE --key COLUMN --claim EXPRESSION --while CONDITION';
    END IF;
    SELECT string_agg(CASE WHEN p.is_column THEN '{}' ELSE p.part END, '' ORDER BY p.place),
           array_agg(CASE WHEN a.atttypid::regtype IN ('smallint'::regtype, 'integer', 'bigint') THEN 'integer' WHEN a.atttypid = 'uuid'::regtype THEN 'uuid' ELSE 'text' END
                     ORDER BY p.place) FILTER (WHERE p.is_column)
    INTO parts, kinds
    FROM wirefence.name_parts(template) WITH ORDINALITY AS p(part, is_column, place)
    LEFT JOIN pg_attribute AS a ON a.attrelid = target AND a.attname = p.part AND a.attnum > 0;
    IF parts <> named || '({}' || repeat(':{}', cardinality(wanted) - 1) || ')' OR kinds <> wanted THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'resource ' || wirefence.quote_name(template) || ' does not fit class ' || wirefence.quote_name(named),
            DETAIL = 'The key of the class is of the form ' || array_to_string(wanted, ':') || '.',
            HINT = 'Write a column in braces for each part of the key, as in job({tenant}:{id}).';
    END IF;
END
$$;

-- require_guardable raises an error if a role cannot guard a table.
CREATE FUNCTION wirefence.require_guardable(target regclass, caller name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT f.member, c.relkind, c.relpersistence, c.relowner, c.relnamespace::regnamespace::text AS schema
        FROM wirefence.inheritance_tree(target) AS f JOIN pg_class AS c ON c.oid = f.member
    LOOP
        IF member.relkind NOT IN ('r', 'p') OR member.relpersistence = 't' OR member.schema IN ('wirefence', 'pg_catalog') THEN
            RAISE wrong_object_type USING
                MESSAGE = 'cannot guard ' || member.member::text,
                DETAIL = 'Guards work on tables and partitions, not on views, foreign tables, temporary tables, or tables of Wirefence and of the system.';
        ELSIF wirefence.is_distributed(member.member) THEN
            RAISE feature_not_supported USING
                MESSAGE = 'cannot guard ' || member.member::text || ', which is managed by Citus',
                DETAIL = 'Citus runs no triggers on its tables at the coordinator, where the tokens are.',
                HINT = 'Let its writers connect to the coordinator through the proxy, which can refuse writes without a fence.';
        ELSIF NOT pg_has_role(caller, member.relowner, 'USAGE') THEN
            RAISE insufficient_privilege USING
                MESSAGE = 'only the owner of ' || member.member::text || ' may guard it',
                HINT = 'Connect as ' || quote_ident(pg_get_userbyid(member.relowner)) || ', or GRANT '
                    || quote_ident(pg_get_userbyid(member.relowner)) || ' TO ' || quote_ident(caller) || '.';
        END IF;
    END LOOP;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = 'table with OID ' || target::oid || ' does not exist';
    END IF;
END
$$;

-- plan_triggers returns the statements that guard one table of an inheritance tree. A table can
-- get a parent later, and a write through that fires no statement trigger of the child. So each
-- table has a trigger for rows as well, which a partition gets from its parent, a later
-- partition too. With one resource its name has the number of the table, since a table with such a
-- guard may become the partition of another one.
CREATE FUNCTION wirefence.plan_triggers(member regclass, kind "char", is_partition boolean, resource text, shadow boolean) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    for_row CONSTANT text := 'CREATE TRIGGER wirefence_guard_%s AFTER %s ON %s FOR EACH ROW WHEN ((%s) IS NOT TRUE) EXECUTE FUNCTION wirefence.%s(%s'
        || CASE WHEN shadow THEN ', ''shadow'')' ELSE ')' END;
    for_statement CONSTANT text := 'CREATE TRIGGER wirefence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION wirefence.%s(%s'
        || CASE WHEN shadow THEN ', ''shadow'')' ELSE ')' END;
    for_transition CONSTANT text := 'CREATE TRIGGER wirefence_guard_%s AFTER %s ON %s REFERENCING %s FOR EACH STATEMENT EXECUTE FUNCTION wirefence.guard_rows(%L'
        || CASE WHEN shadow THEN ', ''shadow'')' ELSE ')' END;
    arguments text;
    of_new text := 'false';
    of_old text := 'false';
    trigger_function CONSTANT text := CASE WHEN wirefence.class_of(resource) IS NULL THEN 'guard_row' ELSE 'guard_rows' END;
BEGIN
    IF NOT wirefence.is_template(resource) THEN
        resource := wirefence.plain_name(resource);
        arguments := format('%L, %L', resource, wirefence.entry(resource));
        RETURN NEXT format(for_statement, member, 'guard', arguments);
        IF NOT is_partition THEN
            RETURN NEXT format(for_row, 'row_' || member::oid, 'INSERT OR UPDATE OR DELETE', member,
                               CASE WHEN shadow THEN wirefence.checked_condition(quote_literal(wirefence.entry(resource)), shadow)
                               ELSE format('current_setting(''wirefence.checked'', true) LIKE %L', -- a shorter tree, which each statement reads
                                           '%' || regexp_replace(wirefence.entry(resource), '([\\_%])', '\\\1', 'g') || '%') END, 'guard', arguments);
        END IF;
        RETURN;
    END IF;
    arguments := quote_literal(resource);
    RETURN NEXT format(for_statement, member, 'guard_statement', arguments);
    IF trigger_function = 'guard_rows' AND kind = 'r' AND NOT is_partition
       AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE member IN (i.inhrelid, i.inhparent)) THEN
        RETURN NEXT format(for_transition, 'insert', 'INSERT', member, 'NEW TABLE AS wirefence_new', resource);
        RETURN NEXT format(for_transition, 'update', 'UPDATE', member, 'OLD TABLE AS wirefence_old NEW TABLE AS wirefence_new', resource);
        RETURN NEXT format(for_transition, 'delete', 'DELETE', member, 'OLD TABLE AS wirefence_old', resource);
    ELSIF NOT is_partition THEN
        IF trigger_function = 'guard_row' THEN
            of_new := wirefence.checked_condition(wirefence.entry_expression(wirefence.name_expression(resource, 'NEW')), shadow);
            of_old := wirefence.checked_condition(wirefence.entry_expression(wirefence.name_expression(resource, 'OLD')), shadow);
        END IF;
        RETURN NEXT format(for_row, 'insert', 'INSERT', member, of_new, trigger_function, arguments);
        RETURN NEXT format(for_row, 'update', 'UPDATE', member, of_new || ' AND ' || of_old, trigger_function, arguments);
        RETURN NEXT format(for_row, 'delete', 'DELETE', member, of_old, trigger_function, arguments);
    END IF;
END
$$;

-- plan_removal returns the statements that remove the guards of a table, of its partitions
-- and of tables that inherit from it, except those for some resources. If other guards were
-- removed after the snapshot was taken, it raises 40001: with the old snapshot it would drop
-- the guards that were installed since.
CREATE FUNCTION wirefence.plan_removal(target regclass, kept text[] DEFAULT '{}') RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM wirefence.inheritance_tree(target) AS f JOIN pg_trigger AS t ON t.tgrelid = f.member WHERE pg_get_triggerdef(t.oid) IS NULL) THEN
        RAISE serialization_failure USING
            MESSAGE = 'could not serialize access to the guards of table ' || target::text,
            DETAIL = 'Triggers of the table were dropped after the transaction took its snapshot.',
            HINT = 'Retry the transaction.';
    END IF;
    RETURN QUERY
        SELECT format('DROP TRIGGER %I ON %s', g.name, g.relation)
        FROM wirefence.inheritance_tree(target) AS f JOIN wirefence.guard_triggers AS g ON g.relation = f.member
        WHERE NOT g.from_parent AND g.resource <> ALL (kept);
END
$$;

-- plan_locks checks whether a role may guard a table, and returns the statements that lock
-- what a plan changes: in the mode of DROP TRIGGER where the table has triggers, otherwise in
-- that of CREATE TRIGGER. LOCK needs rights that an owner may have revoked from itself. There
-- it uses an ALTER TABLE that changes nothing: it needs ownership only, and locks the table.
CREATE FUNCTION wirefence.plan_locks(target regclass, caller name) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = target AND c.relkind IN ('r', 'p')) THEN
        RETURN; -- plan_protect and plan_unprotect raise the error
    END IF;
    PERFORM wirefence.require_guardable(target, caller);
    RETURN QUERY
        SELECT CASE WHEN NOT has_table_privilege(caller, f.member, 'UPDATE, DELETE, TRUNCATE')
                    THEN format('ALTER TABLE ONLY %s OWNER TO %I', f.member, pg_get_userbyid(c.relowner))
                    ELSE format('LOCK TABLE ONLY %s IN %s MODE', f.member,
                                CASE WHEN EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = f.member)
                                     THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END) END
        FROM wirefence.inheritance_tree(target) WITH ORDINALITY AS f(member, kind, is_partition, place) JOIN pg_class AS c ON c.oid = f.member
        ORDER BY f.place;
END
$$;

-- lock_inheritance_tree locks a table, its partitions and the tables that inherit from it, so
-- that a plan made afterwards stays valid. If the required locks have changed meanwhile, it
-- releases all of them and starts again: two sessions that upgrade a lock can deadlock.
CREATE FUNCTION wirefence.lock_inheritance_tree(target regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    planned text[] := ARRAY(SELECT l FROM wirefence.plan_locks(target, current_user) AS l);
    needed text[];
    statement text;
BEGIN
    LOOP
        BEGIN
            FOREACH statement IN ARRAY planned LOOP
                EXECUTE statement;
            END LOOP;
            needed := ARRAY(SELECT l FROM wirefence.plan_locks(target, current_user) AS l);
            EXIT WHEN needed = planned;
            planned := needed;
            RAISE SQLSTATE 'WF000';
        EXCEPTION WHEN SQLSTATE 'WF000' THEN
            CONTINUE;
        END;
    END LOOP;
END
$$;

-- warn_of_replication warns if subscriptions, or an extension that replicates by itself, write
-- into a table, its partitions or tables that inherit from it: an apply worker runs with
-- session_replication_role = replica, and fires no guard.
CREATE FUNCTION wirefence.warn_of_replication(target regclass) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writers CONSTANT text := (
        SELECT string_agg(DISTINCT w.writer, ', ') FROM (
            SELECT 'subscription ' || quote_ident(s.subname) FROM pg_subscription AS s JOIN pg_subscription_rel AS r ON r.srsubid = s.oid
            WHERE r.srrelid IN (SELECT f.member FROM wirefence.inheritance_tree(target) AS f)
            UNION ALL
            SELECT 'extension ' || quote_ident(e.extname) FROM pg_extension AS e WHERE e.extname IN ('pglogical', 'spock', 'bdr')
        ) AS w(writer));
BEGIN
    IF writers IS NOT NULL THEN
        RAISE WARNING USING
            MESSAGE = 'guards don''t check rows that are replicated into ' || target::text || ': ' || writers,
            DETAIL = 'They check what is written here. A replicated row is as good as the check where it was first written, and may arrive after a later holder has written here.',
            HINT = 'Guard the table there, too. If both sides are written to, seal each grant in both databases, by WIREFENCE_SEAL_URLS.';
    END IF;
END
$$;

-- plan_protect checks whether a role can guard a table for a resource, and returns the
-- statements, which the caller runs with its own rights.
CREATE FUNCTION wirefence.plan_protect(target regclass, resource text, shadow boolean, caller name) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted CONSTANT text := CASE WHEN wirefence.is_template(resource) THEN resource ELSE wirefence.plain_name(resource) END;
    other record;
BEGIN
    IF target IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'the table to protect is null';
    END IF;
    PERFORM wirefence.require_guardable(target, caller);
    PERFORM wirefence.check_template(target, resource);
    PERFORM wirefence.warn_of_replication(target);
    SELECT g.relation, g.resource INTO other
    FROM wirefence.inheritance_tree(target) AS f JOIN wirefence.guard_triggers AS g ON g.relation = f.member
    WHERE g.resource <> wanted LIMIT 1;
    IF FOUND THEN
        RAISE duplicate_object USING
            MESSAGE = 'table ' || other.relation::text || ' is already guarded for resource ' || wirefence.quote_name(other.resource),
            HINT = format('Run SELECT wirefence.unprotect(%L) first.', other.relation);
    END IF;
    RETURN QUERY SELECT * FROM wirefence.plan_removal(target);
    RETURN QUERY SELECT t.* FROM wirefence.inheritance_tree(target) AS f, wirefence.plan_triggers(f.member, f.kind, f.is_partition, resource, shadow) AS t;
END
$$;

-- plan_unprotect is plan_protect for the removal. From a partition it removes guards that are
-- not its parent's: those for another resource, from the time before it was attached.
CREATE FUNCTION wirefence.plan_unprotect(target regclass, caller name) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parents CONSTANT text[] := ARRAY(SELECT g.resource FROM wirefence.guard_triggers AS g WHERE g.relation = target AND g.from_parent);
BEGIN
    IF NOT EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target) THEN
        RAISE undefined_object USING MESSAGE = coalesce('table ' || target::text || ' is not guarded', 'the table to unprotect is null');
    ELSIF NOT EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target AND NOT g.from_parent AND g.resource <> ALL (parents)) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is guarded as a partition',
            HINT = 'Unprotect its parent table.';
    END IF;
    PERFORM wirefence.require_guardable(target, caller);
    RETURN QUERY SELECT * FROM wirefence.plan_removal(target, parents);
END
$$;

-- guarded_table returns the table of a declaration, null if the table was dropped. The number
-- of a table may be in use by another table. It is still the same table if the name is the
-- same, or if the table has guards for the same resource, and no other declaration.
CREATE FUNCTION wirefence.guarded_table(declared wirefence.guards) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.oid::regclass FROM pg_class AS c
    WHERE c.oid = declared.relation AND c.relkind IN ('r', 'p')
      AND (declared.relation::text = declared.name
           OR EXISTS (SELECT FROM wirefence.guard_triggers AS t WHERE t.relation = declared.relation AND t.resource = declared.resource)
              AND NOT EXISTS (SELECT FROM wirefence.guards AS g WHERE g.relation = declared.relation AND g.name = declared.relation::text))
$$;

-- declare_guard records that a table is guarded. Its triggers must exist.
CREATE FUNCTION wirefence.guard_called(call text[]) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    target CONSTANT regclass := call[2]::oid;
    resource CONSTANT text := call[3];
    shadow CONSTANT boolean := call[4];
    templated CONSTANT boolean := wirefence.is_template(resource);
    wanted CONSTANT text := CASE WHEN templated THEN resource ELSE wirefence.plain_name(resource) END;
    propagated text;
BEGIN
    IF NOT EXISTS (SELECT FROM wirefence.guard_triggers AS g WHERE g.relation = target AND g.resource = wanted AND g.shadow = call[4]::boolean) THEN
        RAISE insufficient_privilege USING MESSAGE = 'table ' || coalesce(target::text, 'null') || ' has no guard for resource ' || wirefence.quote_name(wanted),
            HINT = 'Run SELECT wirefence.protect(...) to create it.';
    END IF;
    PERFORM wirefence.require_guardable(target, call[1]);
    DELETE FROM wirefence.guards AS g -- under a former name, and of a dropped table of this name
    WHERE g.relation = target OR g.name = target::text AND wirefence.guarded_table(g) IS NULL;
    INSERT INTO wirefence.guards (relation, name, resource, template, shadow, protected_by)
    VALUES (target, target::text, wanted, templated, shadow, call[1]);
    IF NOT wirefence.any_guards() THEN
        PERFORM FROM wirefence.secret FOR UPDATE; -- two concurrent replacements would fail
        propagated := wirefence.propagate('off');
        CREATE OR REPLACE FUNCTION wirefence.any_guards() RETURNS boolean LANGUAGE sql STABLE RETURN true;
        PERFORM wirefence.propagate(propagated);
    END IF;
    RETURN true;
END
$$;

CREATE AGGREGATE wirefence.declare_guard(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.guard_called);

-- retract_guard deletes the declarations of an inheritance tree whose triggers were removed.
CREATE FUNCTION wirefence.retract_called(call text[]) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM wirefence.require_guardable(call[2]::oid, call[1]);
    DELETE FROM wirefence.guards AS g USING wirefence.inheritance_tree(call[2]::oid) AS f
    WHERE g.relation = f.member AND NOT EXISTS (SELECT FROM wirefence.guard_triggers AS t WHERE t.relation = f.member AND t.resource = g.resource);
    RETURN true;
END
$$;

CREATE AGGREGATE wirefence.retract_guard(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.retract_called);

-- protect repairs guards if it is called again, and includes partitions and child tables that were
-- added since.
CREATE FUNCTION wirefence.protect("table" regclass, resource text, shadow boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    statement text;
BEGIN
    PERFORM wirefence.lock_inheritance_tree("table");
    FOR statement IN SELECT * FROM wirefence.plan_protect("table", resource, coalesce(shadow, false), current_user) LOOP
        EXECUTE statement;
    END LOOP;
    PERFORM wirefence.declare_guard("table"::oid::text, resource, coalesce(shadow, false)::text);
END
$$;

CREATE FUNCTION wirefence.unprotect("table" regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    statement text;
BEGIN
    PERFORM wirefence.lock_inheritance_tree("table");
    FOR statement IN SELECT * FROM wirefence.plan_unprotect("table", current_user) LOOP
        EXECUTE statement;
    END LOOP;
    PERFORM wirefence.retract_guard("table"::oid::text);
END
$$;

-- forget_guard deletes the declaration of a table that was dropped. The role that declared
-- it, its members and issuers may do that.
CREATE FUNCTION wirefence.forget_called(call text[]) RETURNS boolean
LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    declared wirefence.guards;
BEGIN
    SELECT * INTO declared FROM wirefence.guards AS g WHERE g.name = call[2] ORDER BY wirefence.guarded_table(g) NULLS FIRST LIMIT 1;
    IF NOT FOUND THEN
        RAISE undefined_object USING
            MESSAGE = coalesce('table ' || wirefence.quote_name(call[2]) || ' does not exist and was not guarded', 'the table to forget is null'),
            HINT = 'SELECT * FROM wirefence.guarded() lists the guarded tables by name and schema.';
    ELSIF wirefence.guarded_table(declared) IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'table ' || wirefence.guarded_table(declared)::text || ' still exists',
            HINT = format('Run SELECT wirefence.unprotect(%L) to remove its guard.', wirefence.guarded_table(declared));
    END IF;
    PERFORM wirefence.require_role(call[1], NULL, declared.protected_by, 'forget the guard of table ' || wirefence.quote_name(declared.name));
    DELETE FROM wirefence.guards AS g WHERE g.name = declared.name AND wirefence.guarded_table(g) IS NULL;
    RETURN true;
END
$$;

CREATE AGGREGATE wirefence.forget_declaration(VARIADIC arguments text[]) (SFUNC = wirefence.called_by, STYPE = text[], FINALFUNC = wirefence.forget_called);

CREATE FUNCTION wirefence.forget_guard(name text) RETURNS void
LANGUAGE sql VOLATILE
RETURN wirefence.forget_declaration(name);

-- guarded also lists tables that have guards without a declaration.
CREATE FUNCTION wirefence.guarded() RETURNS TABLE (relation text, resource text, declared_as text, protected_by text, protected_at timestamptz, fault text, mode text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH declared AS (
        SELECT DISTINCT ON (f.member, g.resource, CASE WHEN f.member IS NULL THEN g.name END)
               f.member AS relation, f.kind, g.resource, g.template, g.shadow, g.name, g.protected_by, g.protected_at, f.member <> g.relation AS descends
        FROM wirefence.guards AS g LEFT JOIN LATERAL wirefence.inheritance_tree(wirefence.guarded_table(g)) AS f ON true
        ORDER BY f.member, g.resource, CASE WHEN f.member IS NULL THEN g.name END, f.member <> g.relation
    ), installed AS (
        SELECT t.relation, min(t.resource) AS resource, bool_or(t.function <> 'guard') AS template, bool_and(t.shadow) AS shadow, bool_or(t.shadow) AS shadow_in_part,
               bool_or(t.name = 'wirefence_guard') AS statements, bool_or(t.from_parent) AS from_parent, count(*) FILTER (WHERE t.name <> 'wirefence_guard') AS rows,
               bool_or(t.enabled IN ('D', 'R')) AS disabled, bool_or(t.for_each_row) AS for_each_row
        FROM wirefence.guard_triggers AS t GROUP BY t.relation
    ), joined AS (
        SELECT coalesce(d.relation, s.relation) AS relation, coalesce(d.resource, s.resource) AS resource, d.name, d.protected_by, d.protected_at,
               CASE WHEN coalesce(s.shadow, d.shadow) THEN 'shadow' ELSE 'enforce' END AS mode,
               CASE
                   WHEN d.name IS NULL AND s.template AND s.rows < 3
                   THEN 'its rows are not guarded any more, as those of a detached partition: protect or unprotect it'
                   WHEN d.name IS NULL THEN 'guarded, but not declared: protect it again'
                   WHEN d.relation IS NULL THEN 'the table has gone: protect the one that took its place, or unprotect it'
                   WHEN s.relation IS NULL AND d.descends THEN 'not guarded, though it inherits from a guarded table: protect that again'
                   WHEN s.relation IS NULL THEN 'its triggers have gone: protect it again'
                   WHEN s.resource <> d.resource THEN 'guarded for another resource, ' || wirefence.quote_name(s.resource)
                   WHEN s.shadow <> d.shadow OR s.shadow_in_part <> d.shadow THEN 'in shadow mode in part: protect it again'
                   WHEN s.disabled THEN 'a trigger of its guard is disabled: protect it again'
                   WHEN NOT s.statements AND s.from_parent THEN 'a later partition: its rows are guarded, TRUNCATE is not: protect the parent again'
                   WHEN d.template AND wirefence.class_of(d.resource) IS NOT NULL AND NOT EXISTS (
                       SELECT FROM wirefence.row_classes AS r WHERE r.class = wirefence.class_of(d.resource))
                   THEN 'the class of its rows is not declared: declare it, or unprotect the table'
                   WHEN d.template AND NOT s.for_each_row AND EXISTS (SELECT FROM pg_inherits AS i WHERE d.relation IN (i.inhrelid, i.inhparent))
                        OR NOT s.statements OR s.rows < CASE WHEN d.template THEN 3 ELSE 1 END
                   THEN 'a trigger of its guard is missing, or it has got a parent since: protect it again'
                   WHEN EXISTS (SELECT FROM wirefence.name_parts(d.resource) AS p
                                WHERE d.template AND p.is_column AND NOT EXISTS (
                                    SELECT FROM pg_attribute AS a
                                    WHERE a.attrelid = d.relation AND a.attname = p.part AND NOT a.attisdropped))
                   THEN 'a column of the template was renamed: unprotect it, and protect it by the new name'
               END AS fault
        FROM declared AS d FULL JOIN installed AS s ON s.relation = d.relation
    )
    SELECT coalesce(j.relation::text, j.name), j.resource, j.name, j.protected_by, j.protected_at, j.fault, j.mode
    FROM joined AS j ORDER BY 1, 2
$$;

GRANT EXECUTE ON FUNCTION wirefence.guarded() TO wirefence_issuer;

GRANT EXECUTE ON FUNCTION wirefence.protect(regclass, text, boolean), wirefence.unprotect(regclass), wirefence.plan_protect(regclass, text, boolean, name),
    wirefence.plan_unprotect(regclass, name), wirefence.plan_locks(regclass, name), wirefence.lock_inheritance_tree(regclass), wirefence.declare_guard(text[]), wirefence.retract_guard(text[]), wirefence.forget_declaration(text[]), wirefence.forget_guard(text) TO PUBLIC;

COMMENT ON FUNCTION wirefence.protect(regclass, text, boolean) IS 'Guards a table by triggers: every write needs a current token of the resource, whatever path it takes. The resource may be a template over columns, as in report:{tenant}:{id}. With shadow, the guard refuses nothing and records in the history what it would refuse. The caller must own the table.';
COMMENT ON FUNCTION wirefence.unprotect(regclass) IS 'Removes the guards of a table, of its partitions and of tables that inherit from it.';
COMMENT ON FUNCTION wirefence.forget_guard(text) IS 'Removes the declaration of a guarded table that was dropped, by its name in guarded().';
COMMENT ON FUNCTION wirefence.guarded() IS 'Returns the tables that are guarded or declared as guarded. fault says what is wrong with the guard, null if nothing.';
