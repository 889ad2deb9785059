\set worker random(1, 1000)
INSERT INTO entries (worker, amount) VALUES (:worker, 42) /*wirefence.token='orders=34'*/;
