SELECT quote_ident(s.subname)
FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
WHERE d.datname = current_database() AND s.subenabled
ORDER BY 1
