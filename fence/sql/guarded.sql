SELECT convert_to(g.relation, 'UTF8'), convert_to(g.resource, 'UTF8'), coalesce(g.protected_by, ''), g.protected_at, coalesce(g.fault, ''), g.mode
FROM wirefence.guarded() AS g
