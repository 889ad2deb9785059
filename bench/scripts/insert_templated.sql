\set worker random(1, 1000)
INSERT INTO entries_templated (worker, amount) VALUES (:worker, 42);
