SELECT wirefence.declare_resource(convert_from($1::bytea, 'UTF8'), $2::text, source => nullif($3::text, ''), must_name_source => $4::boolean,
    advance => nullif($5::text, ''), reuse => nullif($6::text, ''), preempt_after => nullif($7::text, ''), mode => nullif($8::text, ''),
    failover => nullif($9::text, ''))
