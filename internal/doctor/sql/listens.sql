SELECT EXISTS (SELECT FROM pg_catalog.pg_listening_channels() AS c WHERE c = 'wirefence_doctor')
