SELECT wirefence.protect('entries', 'orders'), wirefence.protect('results', 'job({job_id})');
