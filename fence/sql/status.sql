SELECT convert_to(s.resource, 'UTF8'), s.last_token, coalesce(s.holder, ''), s.granted_at, s.advance, s.reuse,
       (extract(epoch FROM s.preempt_after) * 1000000)::bigint, s.writers
FROM wirefence.status() AS s
