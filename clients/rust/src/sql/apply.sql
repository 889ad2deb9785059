-- For this transaction alone, so that nothing stays on a pooled connection. The check is for where there is no proxy.
SELECT wirefence.check(set_config('wirefence.token', $1, true))
