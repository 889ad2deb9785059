CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker int NOT NULL, amount int NOT NULL);
CREATE TABLE locks (resource_id text PRIMARY KEY, last_token bigint NOT NULL);
INSERT INTO locks VALUES ('orders', 34);
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
INSERT INTO pgbench_accounts SELECT n, 1, 0, '' FROM pg_catalog.generate_series(1, 100000) AS n;
SELECT wirefence.seal('orders', 34, 'bench');
VACUUM ANALYZE pgbench_accounts;
CREATE UNLOGGED TABLE copied (text text)
CREATE ROLE worker LOGIN;
GRANT INSERT ON entries TO worker;
