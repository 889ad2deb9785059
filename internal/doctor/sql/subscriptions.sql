SELECT quote_ident(s.subname), coalesce(string_agg(DISTINCT g.relation, ', '), '')
FROM pg_subscription AS s
JOIN pg_database AS d ON d.oid = s.subdbid
LEFT JOIN pg_subscription_rel AS r ON r.srsubid = s.oid
LEFT JOIN wirefence.guarded() AS g ON g.relation = r.srrelid::regclass::text
WHERE d.datname = current_database() AND s.subenabled
GROUP BY s.oid, s.subname
ORDER BY 1
