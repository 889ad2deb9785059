SELECT wirefence.asynchronous_standbys()
