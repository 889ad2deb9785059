SELECT pg_catalog.set_config('wirefence.token', $1, $2)
