SELECT b.login, (array_agg(b.relation::text ORDER BY b.written_at DESC))[1], count(*), max(b.written_at)
FROM wirefence.bypasses AS b
WHERE b.written_at > clock_timestamp() - $1::double precision * interval '1 second'
GROUP BY b.login
ORDER BY 4 DESC
LIMIT 5
