-- Roles that can log in and were granted the role $1, directly or through others. From
-- PostgreSQL 16 on a grant may give the right to grant it further, and no more.
WITH RECURSIVE granted AS (
    SELECT m.roleid, m.member FROM pg_auth_members AS m
    WHERE coalesce((to_jsonb(m) ->> 'inherit_option')::boolean OR (to_jsonb(m) ->> 'set_option')::boolean, true)
), membership AS (
    SELECT g.member FROM granted AS g JOIN pg_roles AS r ON r.oid = g.roleid WHERE r.rolname = $1::text
    UNION
    SELECT g.member FROM granted AS g JOIN membership AS above ON g.roleid = above.member
)
SELECT r.rolname::text
FROM membership JOIN pg_roles AS r ON r.oid = membership.member
WHERE r.rolcanlogin AND NOT r.rolsuper
ORDER BY r.rolname COLLATE "C"
