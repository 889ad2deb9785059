SELECT wirefence.unhold()
