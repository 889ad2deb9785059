\set id random(1, 1000000000)
BEGIN;
SELECT count(*) FROM t WHERE id = :id;
INSERT INTO t VALUES (:id, 'new') ON CONFLICT (id) DO UPDATE SET v = 'again';
SAVEPOINT s;
DELETE FROM t WHERE id = :id;
ROLLBACK TO SAVEPOINT s;
UPDATE t SET v = 'kept' WHERE id = :id;
COMMIT;
