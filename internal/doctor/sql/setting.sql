SELECT coalesce(pg_catalog.current_setting($1, true), '')
