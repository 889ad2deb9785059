INSERT INTO entries (worker, amount) VALUES (:client_id, 42) /*wirefence.token=':resource=1'*/;
\sleep 20 ms
