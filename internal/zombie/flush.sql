-- A commit that waits until it is on the disk, and with it every earlier one: decoding reads no
-- further than that.
SELECT pg_catalog.set_config('synchronous_commit', 'local', true), pg_catalog.pg_logical_emit_message(true, 'wirefence zombie', '')
