SELECT quote_ident(e.extname)
FROM pg_extension AS e
WHERE e.extname IN ('pglogical', 'spock', 'bdr') AND EXISTS (SELECT FROM wirefence.guarded())
ORDER BY 1
