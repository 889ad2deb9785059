\set id 150 * :client_id + random(1, 150)
\set claim 1767225600000000 + :id
BEGIN;
INSERT INTO results (job_id, amount) VALUES (:id, 42) /*wirefence.token='job(:id)=:claim'*/;
UPDATE jobs SET finalized_at = now() WHERE id = :id /*wirefence.token='job(:id)=:claim'*/;
COMMIT;
