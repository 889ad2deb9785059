SELECT wirefence.record_refusals($1, $2::jsonb)
