SELECT wirefence.collect_refusals()
