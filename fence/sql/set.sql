SELECT wirefence.set_resource(convert_from($1::bytea, 'UTF8'), s.reason, source => nullif($3::text, ''), must_name_source => $4::boolean,
    advance => nullif($5::text, ''), reuse => nullif($6::text, ''), preempt_after => nullif($7::text, ''), last_token => $8::bigint,
    mode => nullif($9::text, ''), failover => nullif($10::text, ''))
FROM (SELECT set_config('wirefence.reason', $2::text, true) AS reason OFFSET 0) AS s
