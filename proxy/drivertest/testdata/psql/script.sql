-- What psql does. Its lines are those of other programs; way_test.go says what
-- they mean. :set and :comment come from the command line.
\set QUIET on
\set ON_ERROR_STOP off
\pset format unaligned
\pset tuples_only on
\pset footer off
:set;
SELECT 1 + 1 AS select_1 :comment \gset
\echo R select: :select_1
INSERT INTO t VALUES (1, 'a') RETURNING id :comment;
\echo W insert: :ROW_COUNT rows error :SQLSTATE
INSERT INTO t VALUES (2, 'Ü') :comment; INSERT INTO t VALUES (3, 'b') :comment;
\echo W several: :ROW_COUNT rows error :SQLSTATE
INSERT INTO t VALUES (4, 'c')\; INSERT INTO t VALUES (5, 'd')\; SELECT 'both' :comment;
\echo W in one message: :ROW_COUNT rows error :SQLSTATE
SELECT write_one(6) :comment;
\echo W function: :ROW_COUNT rows error :SQLSTATE
BEGIN;
SAVEPOINT s;
-- Without it, what comes behind fails by 25P02.
\if :ERROR
\else
INSERT INTO t VALUES (7, 'e') :comment;
\endif
\echo W savepoint: :ROW_COUNT rows error :SQLSTATE
COMMIT;
BEGIN;
SAVEPOINT s;
\if :ERROR
\else
DELETE FROM t;
ROLLBACK TO s;
INSERT INTO t VALUES (8, 'f') :comment;
\endif
\echo W behind the savepoint: :ROW_COUNT rows error :SQLSTATE
COMMIT;
SELECT 1 SELEC 2 :comment;
\echo E syntax: error :SQLSTATE :LAST_ERROR_MESSAGE
INSERT INTO t VALUES (9, nöpe) :comment;
\echo E position: error :SQLSTATE
\copy u FROM PROGRAM 'printf "20\\tcopied\\n21\\tcopied too\\n"'
\echo V copy in: :ROW_COUNT rows error :SQLSTATE
COPY t FROM STDIN :comment;
20	copied
21	copied too
\.
\echo W copy in by its own text: :ROW_COUNT rows error :SQLSTATE
\copy (SELECT generate_series(1, 5)) TO STDOUT
\echo R copy out: error :SQLSTATE
PREPARE p AS INSERT INTO t VALUES ($1, 'p');
EXECUTE p(30) :comment;
\echo W prepared: :ROW_COUNT rows error :SQLSTATE
SELECT format('INSERT INTO t VALUES (%s, ''gexec'')', i) || :'comment' FROM generate_series(40, 42) i \gexec
\echo W gexec: :ROW_COUNT rows error :SQLSTATE
SELECT 1 AS a, 'x' AS b \gdesc
\echo R gdesc: error :SQLSTATE
\set FETCH_COUNT 3
SELECT generate_series(1, 10) :comment;
\echo D fetch count: error :SQLSTATE
\unset FETCH_COUNT
LISTEN news;
NOTIFY news, 'hello' :comment;
\echo W notify: error :SQLSTATE
\d t
\echo R describe:
CREATE TABLE made(a int) :comment; DROP TABLE made :comment;
\echo W table: error :SQLSTATE
CALL commit_one(90000) :comment;
\echo W call: error :SQLSTATE
DO $$BEGIN INSERT INTO t VALUES (90010, 'do'); COMMIT; INSERT INTO t VALUES (90011, 'do'); END$$ :comment;
\echo W do: error :SQLSTATE
VACUUM t :comment;
\echo W vacuum: error :SQLSTATE
CREATE INDEX CONCURRENTLY ON t(id) :comment;
\echo W concurrent index: error :SQLSTATE
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO t VALUES (45, 's') :comment;
\echo W serializable: :ROW_COUNT rows error :SQLSTATE
COMMIT;
BEGIN READ ONLY;
SELECT count(*) >= 0 FROM t :comment;
\echo R read only: :ROW_COUNT rows error :SQLSTATE
COMMIT;
DISCARD ALL;
:set;
INSERT INTO t VALUES (50, 'behind a reset') :comment;
\echo W reset: :ROW_COUNT rows error :SQLSTATE
\c
:set;
INSERT INTO t VALUES (51, 'behind a reconnect') :comment;
\echo W reconnected: :ROW_COUNT rows error :SQLSTATE
SELECT 'alive' AS alive :comment \gset
\echo R alive: :alive
