CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL, attempted_at timestamptz, finalized_at timestamptz, args text) WITH (fillfactor = 70);
INSERT INTO jobs SELECT n, 'running', '2026-01-01 00:00:00+00'::timestamptz + n * interval '1 us', NULL, pg_catalog.repeat('x', 200) FROM pg_catalog.generate_series(1, 10000) AS n;
SELECT wirefence.declare_rows('job', 'public.jobs', '{id}', '(extract(epoch from attempted_at) * 1000000)::bigint', 'state = ''running''');
CREATE TABLE results (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id bigint NOT NULL, amount int NOT NULL);
CREATE TABLE results_guarded (LIKE results INCLUDING ALL);
