SELECT pg_catalog.pg_create_logical_replication_slot($1, 'test_decoding', true)
