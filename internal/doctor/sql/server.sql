SELECT current_setting('server_version'), current_setting('server_version_num')::integer, current_database()::text, pg_is_in_recovery(),
       s.reset_val = 'on', s.source, clock_timestamp()
FROM pg_settings AS s WHERE s.name = 'default_transaction_read_only'
