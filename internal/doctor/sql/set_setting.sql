SELECT pg_catalog.set_config('wirefence_doctor.probe', $1, $2)
