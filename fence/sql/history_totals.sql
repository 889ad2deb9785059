SELECT t.kept, t.max_rows, (extract(epoch FROM t.max_age) * 1000000)::bigint, t.oldest, t.raised, t.unrecorded, t.dropped, t.unrecorded_at
FROM wirefence.history_totals() AS t
