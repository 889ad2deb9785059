-- What every database holds besides the schema wirefence: the token of orders
-- is 34. Writes whose text is the driver's own go to u, all others to t.
CREATE TABLE t(id int PRIMARY KEY, v text);
CREATE TABLE u(id int, v text);
CREATE FUNCTION write_one(int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.t VALUES ($1, ''written'') RETURNING id';
CREATE PROCEDURE commit_one(int) LANGUAGE plpgsql AS
	'BEGIN INSERT INTO public.t VALUES ($1, ''called''); COMMIT; INSERT INTO public.t VALUES ($1 + 1, ''called''); END';
ALTER TABLE t OWNER TO app;
ALTER TABLE u OWNER TO app;
SELECT wirefence.seal('orders', 34, 'holder');
