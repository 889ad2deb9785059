SELECT wirefence.revoke($1::text)
