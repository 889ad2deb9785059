-- What tells that a session has written: the transaction that it has now, and how
-- many transactions with an id have ended. $1 is the session's process id.
select coalesce((select a.backend_xid::text from pg_stat_activity a where a.pid = $1), ''),
       pg_snapshot_xmax(pg_current_snapshot())::text
