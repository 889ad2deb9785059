\set id random(1, 1000000000)
INSERT INTO t VALUES (:id, 'one') ON CONFLICT DO NOTHING;
UPDATE t SET v = 'two' WHERE id = :id;
SELECT write_one(:id + 1);
CALL commit_one(:id + 2);
VACUUM t;
