-- Ends the sessions of a database, and waits for their end: its slot would keep it from being dropped.
SELECT pg_catalog.pg_terminate_backend(pid, 5000) FROM pg_catalog.pg_stat_activity WHERE datname = $1
