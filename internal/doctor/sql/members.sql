-- Roles that can log in and were granted the role $1, directly or through others.
WITH RECURSIVE membership AS (
    SELECT m.member FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.roleid WHERE r.rolname = $1::text
    UNION
    SELECT m.member FROM pg_auth_members AS m JOIN membership AS above ON m.roleid = above.member
)
SELECT $1::text, r.rolname::text
FROM membership JOIN pg_roles AS r ON r.oid = membership.member
WHERE r.rolcanlogin AND NOT r.rolsuper
