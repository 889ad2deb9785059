-- Where session_replication_role is replica, with the statement that resets it.
SELECT 'for ' || concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)),
       CASE WHEN r.oid IS NULL THEN format('ALTER DATABASE %I', d.datname)
            WHEN d.oid IS NULL THEN format('ALTER ROLE %I', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I', r.rolname, d.datname) END || ' RESET session_replication_role'
FROM pg_db_role_setting AS s
LEFT JOIN pg_roles AS r ON r.oid = s.setrole
LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE 'session_replication_role=replica' = ANY (s.setconfig) AND coalesce(d.datname = current_database(), true)
UNION ALL
SELECT 'in postgresql.conf', 'ALTER SYSTEM RESET session_replication_role, and take it out of postgresql.conf'
FROM pg_settings AS s
WHERE s.name = 'session_replication_role' AND s.reset_val = 'replica' AND s.source IN ('configuration file', 'command line')
