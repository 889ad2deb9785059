SELECT wirefence.set_carry_name($1::boolean, $2::text)
