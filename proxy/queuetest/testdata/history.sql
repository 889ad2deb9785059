-- The history of a queue's claims: each row says what one statement made of the claim of a job.
-- A job that isn't being worked on has no claim.
CREATE TABLE history (
    id bigint GENERATED ALWAYS AS IDENTITY,
    xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job text NOT NULL,
    before bigint,
    after bigint
);
CREATE INDEX ON history (job, before);

-- note is the trigger of the queue's table. Its arguments are expressions over a row: the job, the
-- claim, and whether it is being worked on.
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    expression text := format('SELECT (%s)::text, CASE WHEN %s THEN %s END FROM (SELECT ($1).*) AS r', TG_ARGV[0], TG_ARGV[2], TG_ARGV[1]);
    job text;
    before bigint;
    after bigint;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        EXECUTE expression INTO job, before USING OLD;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE expression INTO job, after USING NEW;
    END IF;
    IF before IS DISTINCT FROM after THEN
        INSERT INTO history (job, before, after) VALUES (job, before, after);
    END IF;
    RETURN NULL;
END $$;
