\set worker random(1, 1000)
INSERT INTO entries_guarded (worker, amount) VALUES (:worker, 42);
