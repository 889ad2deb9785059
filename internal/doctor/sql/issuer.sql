SELECT current_user::text, r.rolsuper, coalesce(pg_has_role(r.oid, i.oid, 'USAGE'), false), coalesce(pg_has_role(r.oid, o.oid, 'USAGE'), false)
FROM pg_roles AS r LEFT JOIN pg_roles AS i ON i.rolname = 'wirefence_issuer'
LEFT JOIN pg_roles AS o ON o.rolname = 'wirefence_owner'
WHERE r.rolname = current_user
