SELECT CASE WHEN a.grantee = 0 THEN 'everybody' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
       'REVOKE SET ON PARAMETER session_replication_role FROM ' || CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
FROM pg_parameter_acl AS p, LATERAL aclexplode(p.paracl) AS a
LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE p.parname = 'session_replication_role' AND a.privilege_type = 'SET' AND r.rolsuper IS NOT TRUE
