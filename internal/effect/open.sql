SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true)
