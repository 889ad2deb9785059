-- Where a resource's preempt_after ends nobody, lock_timeout bounds the wait for older transactions.
SELECT a.token, a.held_by, extract(epoch FROM a.expires_at - clock_timestamp())::float8
FROM set_config('lock_timeout', $1, true) AS bound,
     wirefence.acquire($2, CASE WHEN bound <> '' THEN $3 END, make_interval(secs => $4), $5) AS a
