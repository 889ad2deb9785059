-- Sessions that hold a resource. The idle time is null where wirefence_owner may not see it.
SELECT h.pid, h.resource, h.login, h.idle IS NULL, h.application, extract(epoch FROM coalesce(h.idle, interval '0'))::double precision, h.superuser
FROM wirefence.idle_holders() AS h
ORDER BY 6 DESC, 1, 2
