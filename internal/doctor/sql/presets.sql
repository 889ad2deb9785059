-- Settings of Wirefence that roles and databases have, with the statement that resets it.
SELECT lower(split_part(c.setting, '=', 1)) AS name,
       concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)) AS whose,
       CASE WHEN s.setrole = 0 THEN format('ALTER DATABASE %I', d.datname)
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I', r.rolname, d.datname) END
         || ' RESET ' || split_part(c.setting, '=', 1) AS remedy
FROM pg_db_role_setting AS s
CROSS JOIN unnest(s.setconfig) AS c(setting)
LEFT JOIN pg_roles AS r ON r.oid = s.setrole
LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE lower(c.setting) LIKE 'wirefence.%' AND coalesce(d.datname = current_database(), true) AND (r.oid IS NOT NULL OR d.oid IS NOT NULL)
ORDER BY 2, 1
