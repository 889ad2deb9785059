BEGIN;
INSERT INTO entries (worker, amount) VALUES (:client_id, 42) /*wirefence.token=':resource=1'*/;
\sleep 60 s
