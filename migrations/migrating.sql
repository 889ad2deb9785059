-- The current role, and whether it has the rights of wirefence_issuer. The role that created
-- wirefence_issuer, and has it with ADMIN OPTION alone, does not. A superuser has all rights anyway.
SELECT current_user::pg_catalog.text,
       coalesce((SELECT pg_catalog.pg_has_role(current_user, i.oid, 'USAGE')
                 FROM pg_catalog.pg_roles AS i WHERE i.rolname = 'wirefence_issuer'), false)
           AND NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user)
