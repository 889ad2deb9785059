-- The tables that are named, and those below them, each with its key: the columns by which its
-- changes name a row, and the columns that a sequence fills.
WITH RECURSIVE family AS (
  SELECT name::regclass::oid AS oid FROM unnest($1::text[]) AS name
  UNION
  SELECT inhrelid FROM pg_catalog.pg_inherits JOIN family ON inhparent = family.oid
)
SELECT
  c.oid,
  format('%I.%I', n.nspname, c.relname) AS name,
  c.relkind::text AS kind,
  c.relpersistence = 'p' AS logged,
  format('SELECT * FROM ONLY %I.%I LIMIT ', n.nspname, c.relname) AS copy,
  ARRAY(
    SELECT a.attname::text
    FROM pg_catalog.pg_index AS i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, at)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = c.oid AND k.at <= i.indnkeyatts
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
    ORDER BY k.at
  ) AS key,
  ARRAY(
    SELECT a.attname::text
    FROM pg_catalog.pg_attribute AS a
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attidentity <> '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%')
  ) AS numbered
FROM family
JOIN pg_catalog.pg_class AS c ON c.oid = family.oid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY name
