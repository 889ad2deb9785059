-- Run this as a role that may create roles, grant pg_signal_backend and pg_read_all_stats, and
-- create a schema in this database: usually a superuser.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'wirefence_owner') THEN
        CREATE ROLE wirefence_owner NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'wirefence_issuer') THEN
        CREATE ROLE wirefence_issuer NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'wirefence_bypass') THEN
        CREATE ROLE wirefence_bypass NOLOGIN;
    END IF;
END
$$;
GRANT pg_signal_backend TO wirefence_owner;
GRANT pg_read_all_stats TO wirefence_owner;
CREATE SCHEMA IF NOT EXISTS wirefence AUTHORIZATION wirefence_owner;
