-- What became of resources since $1: of each kind, how many rows there are up to $2, and how
-- many since, and the seconds that they waited. Handoffs are told apart by the first of the
-- bounds $4 that their wait doesn't exceed, counted from 0. Resources other than $3 count
-- together, under an empty name.
WITH asked AS (
    SELECT convert_from(n.name, 'UTF8') AS name FROM unnest($3::bytea[]) AS n(name)
)
SELECT convert_to(coalesce(a.name, ''), 'UTF8'), h.kind, h.bucket,
       count(*) FILTER (WHERE h.at <= $2), count(*) FILTER (WHERE h.at > $2),
       coalesce(sum(h.waited) FILTER (WHERE h.at <= $2), 0), coalesce(sum(h.waited) FILTER (WHERE h.at > $2), 0)
FROM (VALUES (true), (false)) AS v(issued), LATERAL (
    SELECT h.resource, h.kind, h.at, w.waited,
           CASE h.kind WHEN 'handoff' THEN (SELECT count(*) FROM unnest($4::double precision[]) AS b(bound) WHERE b.bound < w.waited)::int ELSE 0 END AS bucket
    FROM wirefence.history AS h, LATERAL (SELECT greatest(h.waited_seconds, 0) AS waited) AS w
    WHERE h.issued = v.issued AND h.at > $1 AND h.kind IN ('handoff', 'revocation', 'ended')) AS h
LEFT JOIN asked AS a ON a.name = h.resource
GROUP BY 1, 2, 3
