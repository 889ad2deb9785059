-- The functions among these, by signature, that the database lacks.
SELECT w.signature
FROM pg_catalog.unnest($1::pg_catalog.text[]) AS w(signature)
WHERE pg_catalog.to_regprocedure(w.signature) IS NULL
ORDER BY 1
