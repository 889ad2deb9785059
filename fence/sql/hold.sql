SELECT wirefence.hold($1::text)
