CREATE TABLE IF NOT EXISTS wirefence.applied_version (version int4 NOT NULL);
INSERT INTO wirefence.applied_version
SELECT 0 WHERE NOT EXISTS (SELECT FROM wirefence.applied_version);
