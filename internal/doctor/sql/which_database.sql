SELECT wirefence.identity() || ' ' || oid FROM pg_database WHERE datname = current_database()
