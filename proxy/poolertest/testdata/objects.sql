-- The token of orders is 34. A row says with which token it was written.
CREATE TABLE jobs (id bigserial PRIMARY KEY, token bigint);
CREATE FUNCTION take_over(token bigint) RETURNS text LANGUAGE sql
AS $$ SELECT set_config('wirefence.token', 'orders=' || token, false) $$;
SELECT wirefence.seal('orders', 34, 'holder');
