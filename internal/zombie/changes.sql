-- Changes of these tables that were committed since the last call.
SELECT xid::text::bigint, data
FROM pg_catalog.pg_logical_slot_get_changes($1, NULL, NULL, 'skip-empty-xacts', '1')
WHERE starts_with(data, 'table ') AND EXISTS (SELECT FROM unnest($2::text[]) AS name WHERE strpos(data, name) > 0)
