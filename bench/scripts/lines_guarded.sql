INSERT INTO lines_guarded (name, amount) SELECT n % :resources, 42 FROM generate_series(1, :rows) AS n;
