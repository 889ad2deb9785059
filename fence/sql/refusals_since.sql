SELECT convert_to(coalesce(h.resource, ''), 'UTF8'), coalesce(sum(h.count) FILTER (WHERE h.kind = 'refusal'), 0)::bigint,
       coalesce(sum(h.count) FILTER (WHERE h.kind = 'shadow'), 0)::bigint
FROM wirefence.history AS h, (SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS since) AS s
WHERE h.database IS NULL AND h.kind IN ('refusal', 'shadow') AND (h.at >= s.since OR h.last_at >= s.since)
GROUP BY 1
