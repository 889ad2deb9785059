SELECT count(*) FILTER (WHERE l.expires_at > clock_timestamp()), count(*) FILTER (WHERE l.expires_at <= clock_timestamp())
FROM wirefence.leases AS l
