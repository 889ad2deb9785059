SELECT wirefence.set_undeclared($1::text, $2::text)
