-- What became of resources since $1: how many rows of each kind there are up to $2, and how
-- many since. Resources other than $3 count together, under an empty name.
WITH asked AS (
    SELECT convert_from(n.name, 'UTF8') AS name FROM unnest($3::bytea[]) AS n(name)
)
SELECT convert_to(coalesce(a.name, ''), 'UTF8'), h.kind, count(*) FILTER (WHERE h.at <= $2), count(*) FILTER (WHERE h.at > $2)
FROM (VALUES (true), (false)) AS v(issued), LATERAL (
    SELECT h.resource, h.kind, h.at FROM wirefence.history AS h
    WHERE h.issued = v.issued AND h.at > $1 AND h.kind IN ('handoff', 'revocation', 'ended')) AS h
LEFT JOIN asked AS a ON a.name = h.resource
GROUP BY 1, 2
