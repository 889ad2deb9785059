CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker int NOT NULL, amount int NOT NULL);
CREATE TABLE entries_guarded (LIKE entries INCLUDING ALL);
CREATE TABLE entries_templated (LIKE entries INCLUDING ALL, name text NOT NULL DEFAULT 'orders');
CREATE TABLE lines (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name int NOT NULL, amount int NOT NULL);
CREATE TABLE lines_guarded (LIKE lines INCLUDING ALL);
SELECT wirefence.protect('entries_guarded', 'orders'), wirefence.protect('entries_templated', '{name}'), wirefence.protect('lines_guarded', 'line:{name}');
SELECT wirefence.seal('orders', 34, 'bench');
SELECT wirefence.seal('line:' || n, 34, 'bench') FROM pg_catalog.generate_series(0, 31) AS n;
