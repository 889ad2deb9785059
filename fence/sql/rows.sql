SELECT r.class, convert_to(r.relation, 'UTF8'), ARRAY(SELECT convert_to(k.name, 'UTF8') FROM unnest(r.key) WITH ORDINALITY AS k(name, place) ORDER BY k.place),
       convert_to(r.claim, 'UTF8'), convert_to(r."while", 'UTF8'), convert_to(coalesce(r.until, ''), 'UTF8'), r.mode, r.declared_by, r.declared_at, coalesce(r.fault, '')
FROM wirefence.rows() AS r
