SELECT wirefence.carries_name()
