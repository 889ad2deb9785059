-- What psql does. Its lines are those of other programs; see main_test.go.
\set QUIET on
\set ON_ERROR_STOP off
\pset format unaligned
\pset tuples_only on
\pset footer off
SELECT 1 + 1 AS select_1 \gset
\echo R select: :select_1
INSERT INTO t VALUES (1, 'a') RETURNING id;
\echo W insert: :ROW_COUNT rows :ERROR error :SQLSTATE
UPDATE t SET v = 'Ü' WHERE id = 1; INSERT INTO t VALUES (2, 'b');
\echo W several: :ROW_COUNT rows :ERROR error :SQLSTATE
INSERT INTO t VALUES (3, 'c')\; INSERT INTO t VALUES (4, 'd')\; SELECT 'both';
\echo W in one message: :ROW_COUNT rows :ERROR error :SQLSTATE
SELECT write_one(5);
\echo W function: :ROW_COUNT rows :ERROR error :SQLSTATE
BEGIN;
SAVEPOINT s;
INSERT INTO t VALUES (6, 'e');
\echo W savepoint: :ROW_COUNT rows :ERROR error :SQLSTATE
ROLLBACK TO s;
INSERT INTO t VALUES (7, 'f');
\echo W behind the savepoint: :ROW_COUNT rows :ERROR error :SQLSTATE
COMMIT;
SELECT 1 SELEC 2;
\echo E syntax: :SQLSTATE :LAST_ERROR_MESSAGE
INSERT INTO t VALUES (9, nöpe);
\echo E position: :SQLSTATE
\copy t FROM PROGRAM 'printf "20\\tcopied\\n21\\tcopied too\\n"'
\echo W copy in: :ROW_COUNT rows :ERROR error :SQLSTATE
\copy (SELECT generate_series(1, 5)) TO STDOUT
\echo R copy out: :SQLSTATE
PREPARE p AS INSERT INTO t VALUES ($1, 'p');
EXECUTE p(30);
\echo W prepared: :ROW_COUNT rows :ERROR error :SQLSTATE
SELECT format('INSERT INTO t VALUES (%s, ''gexec'')', i) FROM generate_series(40, 42) i \gexec
\echo W gexec: :ROW_COUNT rows :ERROR error :SQLSTATE
SELECT 1 AS a, 'x' AS b \gdesc
\echo R gdesc: :SQLSTATE
\set FETCH_COUNT 3
SELECT generate_series(1, 10);
\echo R fetch count: :SQLSTATE
\unset FETCH_COUNT
LISTEN news;
NOTIFY news, 'hello';
\echo W notify: :ERROR error :SQLSTATE
\d t
\echo R describe: :SQLSTATE
\lo_list
CREATE TABLE made(a int); DROP TABLE made;
\echo W table: :ERROR error :SQLSTATE
\c
INSERT INTO t VALUES (50, 'behind a reconnect');
\echo W reconnected: :ROW_COUNT rows :ERROR error :SQLSTATE
