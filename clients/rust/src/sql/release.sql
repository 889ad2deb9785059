SELECT wirefence.release($1, $2)
