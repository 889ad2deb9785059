SET session_replication_role = replica;
TRUNCATE entries, results;
VACUUM locks;
VACUUM jobs;
CHECKPOINT;
