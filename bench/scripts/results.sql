INSERT INTO results (job_id, amount) SELECT 1 + n % :jobs, 42 FROM generate_series(1, :rows) AS n /*:key=':fence'*/;
