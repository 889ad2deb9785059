-- Prepared transactions that hold the advisory lock of a resource, whose key is that
-- of wirefence.lock_key, which nobody but the owner may call.
SELECT p.gid, l.resource_id, p.prepared, extract(epoch FROM clock_timestamp() - p.prepared)::double precision
FROM wirefence.resource_locks AS l
JOIN pg_locks AS a ON a.locktype = 'advisory' AND a.objsubid = 1 AND a.pid IS NULL AND a.granted
    AND (a.classid::bigint << 32) | a.objid::bigint = hashtextextended(l.resource_id COLLATE "C", 8604534342903230051)
JOIN pg_locks AS t ON t.locktype = 'transactionid' AND t.pid IS NULL AND t.virtualtransaction = a.virtualtransaction
JOIN pg_prepared_xacts AS p ON p.transaction = t.transactionid AND p.database = current_database()
ORDER BY 3, 2
