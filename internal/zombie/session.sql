-- From here on the session doesn't wait for what a frozen run has locked.
SELECT pg_catalog.set_config('lock_timeout', '2s', false)
