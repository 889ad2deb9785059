SELECT c.changed_at, c.changed_by, c.application, c.reason, c.settings
FROM wirefence.resource_changes AS c
WHERE c.resource_id = convert_from($1::bytea, 'UTF8')
ORDER BY c.id
