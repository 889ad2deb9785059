SELECT query LIKE '%doctor=''carried''%' FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid() /*doctor='carried'*/
