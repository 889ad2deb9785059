\set id 150 * :client_id + random(1, 150)
BEGIN;
INSERT INTO results (job_id, amount) VALUES (:id, 42);
UPDATE jobs SET finalized_at = now() WHERE id = :id;
COMMIT;
