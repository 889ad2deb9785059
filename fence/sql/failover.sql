SELECT wirefence.set_failover($1::text, $2::text)
