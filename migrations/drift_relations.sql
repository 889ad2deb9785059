-- Run with pg_catalog alone in the search_path.
-- The faults of the tables, views and sequences that must exist, each with a statement that
-- repairs it, or '', and the name of a missing trigger. $1: their names, $2: their owner, $3:
-- their triggers, each after the name of its table.
WITH there AS (
    SELECT w.name, c.*
    FROM unnest($1::text[]) AS w(name)
    LEFT JOIN pg_class AS c ON c.oid = to_regclass(w.name)
), triggers AS (
    SELECT t.name, g.tgname, g.tgenabled
    FROM there AS t JOIN pg_trigger AS g ON g.tgrelid = t.oid AND NOT g.tgisinternal
)
SELECT t.name, 'it is missing', '', '' FROM there AS t WHERE t.oid IS NULL
UNION ALL
SELECT t.name, 'it belongs to ' || pg_get_userbyid(t.relowner), format('ALTER TABLE %s OWNER TO %I', t.name, $2::text), ''
FROM there AS t WHERE pg_get_userbyid(t.relowner) <> $2::text
UNION ALL
SELECT t.name, 'row level security is on', format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', t.name), ''
FROM there AS t WHERE t.relrowsecurity
UNION ALL
SELECT g.name, format('it has the trigger %I', g.tgname), format('DROP TRIGGER %I ON %s', g.tgname, g.name), ''
FROM triggers AS g WHERE g.name || ' ' || g.tgname <> ALL ($3::text[])
UNION ALL
SELECT split_part(w.name, ' ', 1), 'it lacks the trigger ' || split_part(w.name, ' ', 2), '', split_part(w.name, ' ', 2)
FROM unnest($3::text[]) AS w(name)
WHERE NOT EXISTS (SELECT FROM triggers AS g WHERE g.name || ' ' || g.tgname = w.name)
  AND to_regclass(split_part(w.name, ' ', 1)) IS NOT NULL
UNION ALL
SELECT g.name, format('its trigger %I is disabled', g.tgname), format('ALTER TABLE %s ENABLE TRIGGER %I', g.name, g.tgname), ''
FROM triggers AS g WHERE g.name || ' ' || g.tgname = ANY ($3::text[]) AND g.tgenabled IN ('D', 'R')
UNION ALL
SELECT t.name, format('it has the rule %I', r.rulename), format('DROP RULE %I ON %s', r.rulename, t.name), ''
FROM there AS t JOIN pg_rewrite AS r ON r.ev_class = t.oid AND r.rulename <> '_RETURN'
UNION ALL
SELECT t.name, format('its index %s is not valid', i.indexrelid::regclass), format('REINDEX INDEX %s', i.indexrelid::regclass), ''
FROM there AS t JOIN pg_index AS i ON i.indrelid = t.oid AND NOT i.indisvalid
ORDER BY 1, 2
