\set worker random(1, 1000)
BEGIN;
UPDATE locks SET last_token = greatest(last_token, 34) WHERE resource_id = 'orders' AND last_token <= 34;
INSERT INTO entries (worker, amount) VALUES (:worker, 42);
COMMIT;
