-- Rows that the use of a token made, which no grant and no operator has touched.
SELECT count(*) FILTER (WHERE l.sealed_at IS NULL AND l.granted_at IS NOT NULL
                          AND NOT EXISTS (SELECT FROM wirefence.resource_changes AS c WHERE c.resource_id = l.resource_id)), count(*)
FROM wirefence.resource_locks AS l
