SELECT current_user::text, r.rolsuper, coalesce(pg_has_role(r.oid, i.oid, 'USAGE'), false)
FROM pg_roles AS r LEFT JOIN pg_roles AS i ON i.rolname = 'wirefence_issuer'
WHERE r.rolname = current_user
