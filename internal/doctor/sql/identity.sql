SELECT wirefence.identity(),
       EXISTS (SELECT FROM wirefence.settings AS s WHERE s.failover = 'reacquire')
       OR EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.failover = 'reacquire' AND l.advance = 'grant')
