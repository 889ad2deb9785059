-- What a transaction was checked for is noted in the setting wirefence.checked, in plain words
-- with commas around each entry: ,orders=34,,job(17)=1763900000000000,. A guard trusts it without
-- asking again. It is set as by SET LOCAL, so it goes where the lock of a check goes: with the
-- transaction, and with ROLLBACK TO SAVEPOINT.
--
-- Two entries have no token: ,(shadow)orders=, says that a guard in shadow mode has noted the
-- resource, and ,orders=(bypass), that the session bypasses its guards.
--
-- Guards protect against programs that err, not against malice. A session can set the list by
-- hand, but a program that wants to write with the token of another finds the current token
-- in the error, too.
SET LOCAL search_path = pg_catalog, pg_temp;

-- name keeps the name of a table that was dropped. A dump has only the number of such a
-- table, and in the database where the dump is restored another table may have this number.
CREATE TABLE wirefence.guards (
    relation     regclass NOT NULL,
    name         text NOT NULL,
    resource     text COLLATE "C" NOT NULL,
    template     boolean NOT NULL,
    shadow       boolean NOT NULL,
    protected_by text NOT NULL,
    protected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relation, name)
);

COMMENT ON TABLE wirefence.guards IS 'The tables that protect has guarded. Their triggers do the work; wirefence.guarded() compares the two.';

-- any_guards reports whether a table was ever guarded in this database. The first protect
-- replaces it. As a constant it costs the checks in unguarded databases nothing.
CREATE FUNCTION wirefence.any_guards() RETURNS boolean
LANGUAGE sql STABLE
RETURN false;

-- entry returns how an entry of the list begins. The characters that have a meaning there are
-- percent-encoded in a resource's name.
CREATE FUNCTION wirefence.entry(resource text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ',' || replace(replace(replace(replace(resource, '%', '%25'), ',', '%2C'), '=', '%3D'), '(', '%28') || '=';

-- is_checked reports whether the transaction was checked for a resource. It is null where nothing
-- was noted.
CREATE FUNCTION wirefence.is_checked(resource text) RETURNS boolean
LANGUAGE sql STABLE
RETURN strpos(current_setting('wirefence.checked', true), wirefence.entry(resource)) > 0;

-- note_checked adds entries to the list, with commas between them.
CREATE FUNCTION wirefence.note_checked(entries text) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN set_config('wirefence.checked', coalesce(current_setting('wirefence.checked', true), '') || ',' || entries || ',', true) IS NOT NULL;

-- note_tokens notes a check for guards. A check that was made READ ONLY is none to rely on: it
-- records no token, and RELEASE of a savepoint and the end of a block with EXCEPTION make the
-- transaction READ WRITE again. What is noted is not noted again.
CREATE FUNCTION wirefence.note_tokens(entries text) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN NOT wirefence.any_guards() OR current_setting('transaction_read_only') = 'on'
    OR strpos(current_setting('wirefence.checked', true), ',' || entries || ',') > 0 OR wirefence.note_checked(entries);

-- checked_condition returns an SQL condition for the trigger of a row: the transaction was
-- checked for the resource, or, in shadow mode, the guard has noted it. entry is an SQL
-- expression for the beginning of the resource's entry, which may be null. The condition uses
-- built-in functions only, because it is evaluated for every row.
CREATE FUNCTION wirefence.checked_condition(entry text, shadow boolean) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN format(CASE WHEN shadow THEN '(strpos(%1$s, %2$s) > 0 OR strpos(%1$s, '',(shadow)'' || substr(%2$s, 2)) > 0)' ELSE 'strpos(%1$s, %2$s) > 0' END,
              'current_setting(''wirefence.checked'', true)', entry);

-- entry_expression returns the SQL of wirefence.entry for an SQL expression of a resource's name.
CREATE FUNCTION wirefence.entry_expression(name text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN format($$',' || replace(replace(replace(replace(%s, '%%', '%%25'), ',', '%%2C'), '=', '%%3D'), '(', '%%28') || '='$$, name);
