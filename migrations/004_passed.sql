-- What a transaction was checked for. A guard must know that at little cost, be it
-- by a proxy's check or by another guard. Two things say it together. The variable
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

-- name keeps the name of a table that has gone. A dump has only the number of such a
-- table, which another may have where the dump is restored.
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

COMMENT ON TABLE wirefence.guards IS 'Which tables are to be guarded. What stands guard are their triggers; wirefence.guarded() compares the two.';

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

-- has_passed reports whether the transaction was checked for a resource; with the
-- seed 2, whether it was noted by a guard in shadow mode.
CREATE FUNCTION wirefence.has_passed(resource text, seed bigint DEFAULT 0) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN strpos(coalesce(current_setting('wirefence.passed', true), ''), ',' || hashtextextended(resource COLLATE "C", seed) || ',') > 0
        THEN currval('wirefence.passed') = interval_hash_extended(now() - timestamptz '1970-01-01 00:00:00+00',
            hashtextextended(current_setting('wirefence.passed', true), 0)) ELSE false END
$$;

-- note_passed adds resources to what the transaction was checked for and, told apart
-- by the seed 1, what the session variable held then: should that change, a guard has
-- it checked anew, since another fence may bring a higher token, which must be recorded.
-- The caller has checked the resources in this transaction, by the variable or by what
-- overrode it. The name '' stands for bypassing, which is asked for no resource. The
-- seed 2 is for what a guard in shadow mode has noted, and then '' for whatever it
-- would note besides.
CREATE FUNCTION wirefence.note_passed(resources text[], seed bigint DEFAULT 0) RETURNS boolean
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
        mark := hashtextextended(resource COLLATE "C", seed) || ',';
        IF strpos(noted, ',' || mark) = 0 THEN
            noted := noted || mark;
        END IF;
    END LOOP;
    IF seed = 0 THEN
        mark := hashtextextended(coalesce(current_setting('wirefence.token', true), '') COLLATE "C", 1) || ',';
        IF strpos(noted, ',' || mark) = 0 THEN
            noted := noted || mark;
        END IF;
    END IF;
    PERFORM set_config('wirefence.passed', noted, true),
            setval('wirefence.passed', interval_hash_extended(began, hashtextextended(noted, 0)));
    RETURN true;
END
$$;

-- note_guarded notes those of the resources that guards may ask for.
CREATE FUNCTION wirefence.note_guarded(resources text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    noted CONSTANT text[] := ARRAY(SELECT u.resource FROM unnest(resources) AS u(resource)
                                   WHERE EXISTS (SELECT FROM wirefence.guards AS g WHERE g.template OR g.resource = u.resource));
BEGIN
    IF noted <> '{}' AND current_setting('transaction_read_only') = 'off' THEN
        PERFORM wirefence.note_passed(noted);
    END IF;
END
$$;
