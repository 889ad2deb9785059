-- A row says under which token it was written, and by which kind of statement.
CREATE TABLE written (
    id serial PRIMARY KEY, token int, how text,
    pid int DEFAULT pg_backend_pid(), at timestamptz DEFAULT clock_timestamp()
);
-- At COMMIT each row of this table becomes a row of written. One without a token gets that of
-- the variable.
CREATE TABLE delayed (token int, how text);

-- Rows of older tokens that were there when a token had been sealed.
CREATE TABLE sealed (token int, older bigint);

-- The token in the session variable.
CREATE FUNCTION carried() RETURNS int LANGUAGE sql VOLATILE AS $$ SELECT substr(current_setting('wirefence.token'), 8)::int $$;

CREATE FUNCTION write(token int, how text) RETURNS int LANGUAGE sql VOLATILE AS $$
    INSERT INTO public.written (token, how) VALUES ($1, $2) RETURNING 1
$$;

-- A domain that writes.
CREATE DOMAIN noting AS text CHECK (write(carried(), 'domain') = 1);

CREATE PROCEDURE write_and_commit(rows int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. rows LOOP
        PERFORM public.write(public.carried(), 'procedure');
        COMMIT;
    END LOOP;
END $$;

CREATE FUNCTION write_delayed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.write(coalesce(NEW.token, public.carried()), NEW.how);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON delayed
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION write_delayed();

GRANT ALL ON written, delayed TO app;
GRANT ALL ON SEQUENCE written_id_seq TO app;

-- Clients often leave transactions open.
SELECT wirefence.seal('other', 1, 'another holder');
UPDATE wirefence.resource_locks SET preempt_after = '700ms';
