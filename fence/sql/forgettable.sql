SELECT convert_to(f.resource, 'UTF8'), f.last_token, coalesce(f.source, ''), f.forgotten
FROM wirefence.forgettable(make_interval(secs => $1::double precision)) AS f
ORDER BY f.resource COLLATE "C"
