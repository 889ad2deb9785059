-- The table of the highest tokens, and the rights on it. This file runs as wirefence_owner,
-- which owns everything that it creates. preflight.sql has created the roles and the schema.
SET LOCAL search_path = pg_catalog, pg_temp;

-- A publication of all tables needs an identity for this table, because its row is updated.
ALTER TABLE wirefence.applied_version REPLICA IDENTITY FULL;

-- No role may call a function before it is granted.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

GRANT USAGE ON SCHEMA wirefence TO PUBLIC;

-- A seal or an advance updates a row heap-only: the row is narrow, its page has free space,
-- and no index covers a column that they change.
CREATE TABLE wirefence.resource_locks (
    resource_id   text COLLATE "C" PRIMARY KEY
                  CHECK (octet_length(resource_id) BETWEEN 1 AND 255),
    last_token    bigint NOT NULL DEFAULT 0 CHECK (last_token >= 0),
    source        text COLLATE "C" CHECK (source ~ '^[a-z][a-z0-9_.-]{0,31}$'),
    must_name_source boolean NOT NULL DEFAULT false,
    holder        text,
    granted_at    timestamptz,
    sealed_at     timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    advance       text COLLATE "C" NOT NULL DEFAULT 'use' CHECK (advance IN ('use', 'grant')),
    reuse         text COLLATE "C" NOT NULL DEFAULT 'allow' CHECK (reuse IN ('allow', 'once')),
    preempt_after interval DEFAULT '5 s' CHECK (preempt_after >= '0 s'),
    mode          text COLLATE "C" NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'shadow')),
    used_token    bigint,
    used_xid      xid8,
    failover      text COLLATE "C" NOT NULL DEFAULT 'reacquire' CHECK (failover IN ('reacquire', 'trust')),
    sealed_under  text COLLATE "C",
    forgotten_token bigint,
    fence         text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN mode = 'enforce' AND reuse = 'allow' AND NOT must_name_source AND (forgotten_token = last_token) IS NOT TRUE AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text END) STORED,
    sourced_fence text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN mode = 'enforce' AND reuse = 'allow' AND (forgotten_token = last_token) IS NOT TRUE AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text || '@' || source END) STORED,
    pinned_to     text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN failover = 'reacquire' AND advance = 'grant' THEN sealed_under END) STORED,
    CHECK (source IS NOT NULL OR NOT must_name_source)
) WITH (fillfactor = 70);

COMMENT ON TABLE wirefence.resource_locks IS 'The highest fencing token of each resource, and the resource''s policy.';
COMMENT ON COLUMN wirefence.resource_locks.source IS 'The lock service that counts the tokens; null until one is named.';
COMMENT ON COLUMN wirefence.resource_locks.must_name_source IS 'True: a token that names no source is refused.';
COMMENT ON COLUMN wirefence.resource_locks.granted_at IS 'When last_token was recorded, by a seal or by its first use.';
COMMENT ON COLUMN wirefence.resource_locks.sealed_at IS 'When a seal last recorded a grant; null if no seal did.';
COMMENT ON COLUMN wirefence.resource_locks.advance IS 'use: a higher token below 2^62 advances on its first use. grant: only a seal advances.';
COMMENT ON COLUMN wirefence.resource_locks.reuse IS 'allow: the current token is accepted by any number of transactions. once: by one.';
COMMENT ON COLUMN wirefence.resource_locks.preempt_after IS 'How long a newer token waits for older transactions before it terminates their backends; null: without limit.';
COMMENT ON COLUMN wirefence.resource_locks.mode IS 'enforce: a stale token is refused. shadow: it is accepted, and the history records what would have been refused.';
COMMENT ON COLUMN wirefence.resource_locks.used_token IS 'Under reuse = once, the highest token accepted.';
COMMENT ON COLUMN wirefence.resource_locks.used_xid IS 'The transaction that presented used_token.';
COMMENT ON COLUMN wirefence.resource_locks.failover IS 'reacquire: a token that was granted before a promotion or a restore is refused after it. trust: the storage keeps every commit, so it keeps the tokens too.';
COMMENT ON COLUMN wirefence.resource_locks.sealed_under IS 'The identity of the server when a seal or an operator last raised last_token; null if none did.';
COMMENT ON COLUMN wirefence.resource_locks.forgotten_token IS 'While this is last_token, the resource is forgotten: it counts as unknown, and the row can be removed.';
COMMENT ON COLUMN wirefence.resource_locks.pinned_to IS 'The identity that the server must have for a token to be accepted; null: any.';
COMMENT ON COLUMN wirefence.resource_locks.fence IS 'The fence with the current token, where check accepts it without further conditions; null under mode = shadow, reuse = once, must_name_source, for a forgotten resource, and for names that are percent-encoded.';
COMMENT ON COLUMN wirefence.resource_locks.sourced_fence IS 'The same fence, with the source after the token.';

CREATE INDEX resource_locks_shadow ON wirefence.resource_locks (resource_id) WHERE mode = 'shadow';

-- row_may_be_lost asks whether any resource is granted here.
CREATE INDEX resource_locks_granted ON wirefence.resource_locks (resource_id) WHERE advance = 'grant';

-- citus_group is null unless the nodes of Citus have the tokens: see 017_citus.sql, which
-- replaces it.
CREATE FUNCTION wirefence.citus_group() RETURNS text
LANGUAGE sql STABLE
RETURN NULL;

GRANT EXECUTE ON FUNCTION wirefence.citus_group() TO PUBLIC;

-- identity returns what distinguishes this server from copies of it: the system identifier,
-- which differs after pg_upgrade and in a new cluster, and the timeline, which differs after
-- a promotion and after a recovery to a point in time. A worker of Citus has its group there,
-- too, which differs after it was removed and added again. It fails in recovery.
--
-- Where a server does not report them and the operator trusts its storage, identity stays
-- this constant, so no token is ever attributed to a former server.
CREATE FUNCTION wirefence.identity() RETURNS text
LANGUAGE sql
RETURN 'unknown';

-- know_server keeps the identity in a setting of the session, since to read the system identifier
-- opens a file. A server that isn't in recovery has one timeline for as long as it runs, so no
-- session outlives the value. It reports false in recovery. PL/pgSQL keeps its callers small: they
-- call it only where the setting is empty.
CREATE FUNCTION wirefence.know_server() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NOT pg_is_in_recovery() AND set_config('wirefence.server', wirefence.identity(), false) <> '';
END
$$;

-- is_here reports whether a row that is pinned to a server is valid on the one that the session
-- knows.
CREATE FUNCTION wirefence.is_here(pinned_to text) RETURNS boolean
LANGUAGE sql
RETURN pinned_to = coalesce(current_setting('wirefence.server', true), '');

-- PostgreSQL inlines identity into its callers, so it is VOLATILE as the functions that it calls.
DO $$
BEGIN
    CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text
    LANGUAGE sql
    RETURN concat((pg_control_system()).system_identifier, '/', left(pg_walfile_name(pg_current_wal_lsn()), 8), wirefence.citus_group());
    PERFORM wirefence.identity();
EXCEPTION WHEN OTHERS THEN
    IF current_setting('wirefence.failover', true) = 'trust' THEN
        RETURN;
    ELSIF SQLSTATE = '42501' THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'wirefence_owner lacks the right to read the identity of the server: ' || SQLERRM,
            HINT = 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system(), pg_catalog.pg_current_wal_lsn(), pg_catalog.pg_walfile_name(pg_lsn) TO wirefence_owner, wirefence_issuer.';
    END IF;
    RAISE feature_not_supported USING
        MESSAGE = 'this server does not report its timeline: ' || SQLERRM,
        DETAIL = 'Wirefence detects by the timeline that a server was promoted, after which tokens may be lost.',
        HINT = 'If the storage keeps every commit across a failover, run wirefence migrate --failover trust, or SET wirefence.failover = ''trust''.';
END
$$;

-- settings has one row: the settings for all resources.
CREATE TABLE wirefence.settings (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    undeclared  text COLLATE "C" NOT NULL DEFAULT 'allow' CHECK (undeclared IN ('allow', 'refuse')),
    failover    text COLLATE "C" NOT NULL DEFAULT 'reacquire' CHECK (failover IN ('reacquire', 'trust')),
    began_under text COLLATE "C" NOT NULL DEFAULT wirefence.identity(),
    floor       bigint NOT NULL DEFAULT 0,
    forgot_grants boolean NOT NULL DEFAULT false
);

COMMENT ON COLUMN wirefence.settings.undeclared IS 'How a token is judged whose resource is not in resource_locks. allow: it is accepted, and the resource is recorded. refuse: WF008.';
COMMENT ON COLUMN wirefence.settings.failover IS 'The failover policy of every resource for which no operator has set another.';
COMMENT ON COLUMN wirefence.settings.began_under IS 'The identity of the server when the schema was created; it applies to resources that have no sealed_under.';
COMMENT ON COLUMN wirefence.settings.floor IS 'The highest token that was ever forgotten. An unknown resource accepts no token up to it, and its next grant exceeds it.';
COMMENT ON COLUMN wirefence.settings.forgot_grants IS 'A resource with granted tokens was forgotten.';

-- The operator chooses the failover policy when the schema is created.
INSERT INTO wirefence.settings (failover) VALUES (coalesce(nullif(current_setting('wirefence.failover', true), ''), 'reacquire'));

GRANT SELECT ON wirefence.resource_locks, wirefence.settings TO wirefence_issuer;

-- Every role may ask whether the schema fits the binary.
CREATE FUNCTION wirefence.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT version FROM wirefence.applied_version';

GRANT EXECUTE ON FUNCTION wirefence.schema_version() TO PUBLIC;

COMMENT ON FUNCTION wirefence.schema_version() IS 'Returns the version of the schema.';
COMMENT ON FUNCTION wirefence.identity() IS 'Returns the system identifier and the timeline of the server, by which Wirefence detects a promotion or a restore; unknown where the server does not report them.';
