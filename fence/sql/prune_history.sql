SELECT wirefence.prune_history()
