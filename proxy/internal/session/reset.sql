SET LOCAL wirefence.token TO DEFAULT
