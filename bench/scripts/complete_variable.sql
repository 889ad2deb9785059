\set id 150 * :client_id + random(1, 150)
\set claim 1767225600000000 + :id
BEGIN \; SET LOCAL wirefence.token = 'job(:id)=:claim';
INSERT INTO results (job_id, amount) VALUES (:id, 42);
UPDATE jobs SET finalized_at = now() WHERE id = :id;
COMMIT;
