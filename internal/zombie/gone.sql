-- Which of these server processes are still there.
SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY ($1::int[])
