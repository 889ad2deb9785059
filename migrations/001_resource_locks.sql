-- The table that holds the truth, and who may do what with it. Everything
-- belongs to wirefence_owner, as whom this runs; the roles and the schema are
-- made before (preflight.sql).
SET LOCAL search_path = pg_catalog, pg_temp;

-- A function is nobody's to call until it is granted.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

GRANT USAGE ON SCHEMA wirefence TO PUBLIC;

-- The row is narrow and only its key is indexed, so that a seal or an advance
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
    used_token    bigint,
    used_xid      xid8,
    fence         text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN reuse = 'allow' AND NOT must_name_source AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text END) STORED,
    sourced_fence text COLLATE "C" GENERATED ALWAYS AS (
                      CASE WHEN reuse = 'allow' AND resource_id !~ '[^A-Za-z0-9_.:/-]'
                           THEN resource_id || '=' || last_token::text || '@' || source END) STORED,
    CHECK (source IS NOT NULL OR NOT must_name_source)
) WITH (fillfactor = 70);

COMMENT ON TABLE wirefence.resource_locks IS 'The highest fencing token of each resource, and the resource''s policy.';
COMMENT ON COLUMN wirefence.resource_locks.source IS 'Which lock service counts the tokens; null as long as none was named.';
COMMENT ON COLUMN wirefence.resource_locks.must_name_source IS 'Whether a token that names no source is refused.';
COMMENT ON COLUMN wirefence.resource_locks.granted_at IS 'When last_token was recorded, by a seal or by its first use.';
COMMENT ON COLUMN wirefence.resource_locks.sealed_at IS 'When a seal last recorded a grant; null if none ever did.';
COMMENT ON COLUMN wirefence.resource_locks.advance IS 'use: a higher token advances on its first write. grant: only a seal advances.';
COMMENT ON COLUMN wirefence.resource_locks.reuse IS 'allow: the current token is accepted by any number of transactions. once: by one.';
COMMENT ON COLUMN wirefence.resource_locks.preempt_after IS 'How long a newer token waits for older transactions before it ends their backends; null waits for ever.';
COMMENT ON COLUMN wirefence.resource_locks.used_token IS 'Under reuse = once, the highest token accepted.';
COMMENT ON COLUMN wirefence.resource_locks.used_xid IS 'The transaction that used_token was accepted for.';
COMMENT ON COLUMN wirefence.resource_locks.fence IS 'The fence with the current token, where it is accepted as it stands; null under reuse = once, under must_name_source, and for names that are percent-encoded.';
COMMENT ON COLUMN wirefence.resource_locks.sourced_fence IS 'The same with the source behind the token.';

GRANT SELECT ON wirefence.resource_locks TO wirefence_issuer;

-- Anybody may ask whether the schema fits the binary.
CREATE FUNCTION wirefence.schema_version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT version FROM wirefence.applied_version';

GRANT EXECUTE ON FUNCTION wirefence.schema_version() TO PUBLIC;
