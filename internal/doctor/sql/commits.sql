-- Where synchronous_commit waits for less than a synchronous standby's disk, with the
-- statement that resets it.
WITH less AS (
    SELECT s.setrole, s.setdatabase, split_part(c.setting, '=', 2) AS value
    FROM pg_db_role_setting AS s, unnest(s.setconfig) AS c(setting)
    WHERE c.setting LIKE 'synchronous\_commit=%' AND split_part(c.setting, '=', 2) NOT IN ('on', 'true', 'yes', '1', 'remote_apply')
)
SELECT l.value || ' for ' || concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)),
       CASE WHEN l.setrole = 0 THEN format('ALTER DATABASE %I', d.datname)
            WHEN l.setdatabase = 0 THEN format('ALTER ROLE %I', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I', r.rolname, d.datname) END || ' RESET synchronous_commit'
FROM less AS l
LEFT JOIN pg_roles AS r ON r.oid = l.setrole
LEFT JOIN pg_database AS d ON d.oid = l.setdatabase
WHERE coalesce(d.datname = current_database(), true) AND (r.oid IS NOT NULL OR d.oid IS NOT NULL)
UNION ALL
SELECT s.reset_val || ' in postgresql.conf', 'ALTER SYSTEM RESET synchronous_commit, and take it out of postgresql.conf'
FROM pg_settings AS s
WHERE s.name = 'synchronous_commit' AND s.reset_val NOT IN ('on', 'remote_apply') AND s.source IN ('configuration file', 'command line')
