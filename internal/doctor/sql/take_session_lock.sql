SELECT pg_catalog.pg_try_advisory_lock($1::bigint)
