-- The table that holds the truth, and who may do what with it. Everything
-- belongs to wirefence_owner, as whom this runs; the roles and the schema are
-- made before (preflight.sql).
SET LOCAL search_path = pg_catalog, pg_temp;

-- The version is updated, which a publication of all tables wants an identity for.
ALTER TABLE wirefence.applied_version REPLICA IDENTITY FULL;

-- A function is nobody's to call until it is granted.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

GRANT USAGE ON SCHEMA wirefence TO PUBLIC;

-- The row is narrow, and no index has what a seal or an advance changes, so that it
-- is a heap-only update within the page.
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
    fence         text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN mode = 'enforce' AND reuse = 'allow' AND NOT must_name_source AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text END) STORED,
    sourced_fence text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN mode = 'enforce' AND reuse = 'allow' AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text || '@' || source END) STORED,
    pinned_to     text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN failover = 'reacquire' AND advance = 'grant' THEN sealed_under END) STORED,
    CHECK (source IS NOT NULL OR NOT must_name_source)
) WITH (fillfactor = 70);

COMMENT ON TABLE wirefence.resource_locks IS 'The highest fencing token of each resource, and the resource''s policy.';
COMMENT ON COLUMN wirefence.resource_locks.source IS 'Which lock service counts the tokens; null as long as none was named.';
COMMENT ON COLUMN wirefence.resource_locks.must_name_source IS 'Whether a token that names no source is refused.';
COMMENT ON COLUMN wirefence.resource_locks.granted_at IS 'When last_token was recorded, by a seal or by its first use.';
COMMENT ON COLUMN wirefence.resource_locks.sealed_at IS 'When a seal last recorded a grant; null if none ever did.';
COMMENT ON COLUMN wirefence.resource_locks.advance IS 'use: a higher token below 2^62 advances on its first use. grant: only a seal advances.';
COMMENT ON COLUMN wirefence.resource_locks.reuse IS 'allow: the current token is accepted by any number of transactions. once: by one.';
COMMENT ON COLUMN wirefence.resource_locks.preempt_after IS 'How long a newer token waits for older transactions before it ends their backends; null waits for ever.';
COMMENT ON COLUMN wirefence.resource_locks.mode IS 'enforce: refuse. shadow: let pass, and note what would have been refused.';
COMMENT ON COLUMN wirefence.resource_locks.used_token IS 'Under reuse = once, the highest token accepted.';
COMMENT ON COLUMN wirefence.resource_locks.used_xid IS 'The transaction that used_token was accepted for.';
COMMENT ON COLUMN wirefence.resource_locks.failover IS 'reacquire: a token that was granted before a promotion or a restore doesn''t count behind it. trust: the storage keeps every commit, and so the tokens too.';
COMMENT ON COLUMN wirefence.resource_locks.sealed_under IS 'The identity of the server when last_token was last moved on by a seal or an operator; null if it never was.';
COMMENT ON COLUMN wirefence.resource_locks.pinned_to IS 'The identity that the server must have for a token to count; null where it may have any.';
COMMENT ON COLUMN wirefence.resource_locks.fence IS 'The fence with the current token, where it is accepted as it stands; null under mode = shadow, reuse = once, must_name_source, and for names that are percent-encoded.';
COMMENT ON COLUMN wirefence.resource_locks.sourced_fence IS 'The same with the source behind the token.';

CREATE INDEX resource_locks_shadow ON wirefence.resource_locks (resource_id) WHERE mode = 'shadow';

-- Whether any token is granted here is asked where a resource isn't known.
CREATE INDEX resource_locks_granted ON wirefence.resource_locks (resource_id) WHERE advance = 'grant';

-- identity names what of a cluster's history may differ from that of a copy: the
-- system identifier, which pg_upgrade and a new cluster change, and the timeline, which
-- a promotion and a recovery to a point in time change. It fails in recovery.
--
-- Where a server doesn't tell it, and the operator trusts its storage, it stays this
-- constant, so that no token is ever taken for a former server's.
CREATE FUNCTION wirefence.identity() RETURNS text
LANGUAGE sql
RETURN 'unknown';

-- It is inlined where it is called, so it is VOLATILE as what it calls.
DO $$
BEGIN
    CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text
    LANGUAGE sql
    RETURN concat((pg_control_system()).system_identifier, '/', left(pg_walfile_name(pg_current_wal_lsn()), 8));
    PERFORM wirefence.identity();
EXCEPTION WHEN OTHERS THEN
    IF current_setting('wirefence.failover', true) = 'trust' THEN
        RETURN;
    ELSIF SQLSTATE = '42501' THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'wirefence_owner may not ask which server this is: ' || SQLERRM,
            HINT = 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system(), pg_catalog.pg_current_wal_lsn(), pg_catalog.pg_walfile_name(pg_lsn) TO wirefence_owner, wirefence_issuer.';
    END IF;
    RAISE feature_not_supported USING
        MESSAGE = 'this server does not tell its timeline: ' || SQLERRM,
        DETAIL = 'By its timeline Wirefence knows that a server was promoted, and that tokens may be lost.',
        HINT = 'If its storage keeps every commit across a failover: SET wirefence.failover = ''trust'', or wirefence migrate --failover trust.';
END
$$;

-- settings has one row: what holds for all resources.
CREATE TABLE wirefence.settings (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    undeclared  text COLLATE "C" NOT NULL DEFAULT 'allow' CHECK (undeclared IN ('allow', 'refuse')),
    failover    text COLLATE "C" NOT NULL DEFAULT 'reacquire' CHECK (failover IN ('reacquire', 'trust')),
    began_under text COLLATE "C" NOT NULL DEFAULT wirefence.identity()
);

COMMENT ON COLUMN wirefence.settings.undeclared IS 'What becomes of a token for a resource that is not in resource_locks. allow: it counts, and makes the resource known. refuse: WF008.';
COMMENT ON COLUMN wirefence.settings.failover IS 'The failover of every resource of which no operator has said another.';
COMMENT ON COLUMN wirefence.settings.began_under IS 'The identity of the server when the schema was made: that of a resource of which nothing is recorded.';

-- What the operator chooses when the schema is made.
INSERT INTO wirefence.settings (failover) VALUES (coalesce(nullif(current_setting('wirefence.failover', true), ''), 'reacquire'));

GRANT SELECT ON wirefence.resource_locks, wirefence.settings TO wirefence_issuer;

-- Anybody may ask whether the schema fits the binary.
CREATE FUNCTION wirefence.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT version FROM wirefence.applied_version';

GRANT EXECUTE ON FUNCTION wirefence.schema_version() TO PUBLIC;

COMMENT ON FUNCTION wirefence.schema_version() IS 'Returns the version of the schema.';
COMMENT ON FUNCTION wirefence.identity() IS 'Returns the system identifier and the timeline of the server, by which a promotion or a restore is noticed; unknown where the server does not tell them.';
