-- The declared table that a partition or heir descends from.
WITH RECURSIVE above AS (
    SELECT i.inhparent FROM pg_inherits AS i WHERE i.inhrelid = to_regclass($1::text)
    UNION
    SELECT i.inhparent FROM pg_inherits AS i JOIN above ON i.inhrelid = above.inhparent
)
SELECT g.relation::text FROM above JOIN wirefence.guards AS g ON g.relation = above.inhparent
