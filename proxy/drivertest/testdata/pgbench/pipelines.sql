\set id random(1, 1000000000)
\startpipeline
INSERT INTO t VALUES (:id, 'first') ON CONFLICT DO NOTHING;
SELECT 1;
INSERT INTO t VALUES (:id + 1, 'second') ON CONFLICT DO NOTHING;
\endpipeline
\startpipeline
BEGIN;
UPDATE t SET v = 'third' WHERE id = :id;
COMMIT;
\endpipeline
