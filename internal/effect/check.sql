SELECT wirefence.check($1::text)
