INSERT INTO results (job_id, amount) SELECT n, 42 FROM generate_series(1, 1000) AS n /*wirefence.token=':claims'*/;
