-- What a promotion does to tokens. A standby that didn't receive the last commits has
-- lost the last grants: its last_token is that of a former holder. So a row counts only
-- on the server and the timeline on which it was written, and the next token is above
-- all that the lost history can have granted.
SET LOCAL search_path = pg_catalog, pg_temp;

-- is_former reports whether what is recorded of a resource, or that nothing is, may lack
-- grants: it was written by another cluster, or on another timeline.
CREATE FUNCTION wirefence.is_former(known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce((known).failover, s.failover) = 'reacquire' AND coalesce((known).sealed_under, s.began_under) <> wirefence.identity()
    FROM wirefence.settings AS s
$$;

-- default_failover is that of a resource of which no operator has said another.
CREATE FUNCTION wirefence.default_failover() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT s.failover FROM wirefence.settings AS s $$;

-- may_be_forgotten reports whether a resource that isn't known may be one whose grants
-- are lost: which is so in a database that grants tokens. Where all come from elsewhere,
-- nobody would ever seal it.
CREATE FUNCTION wirefence.may_be_forgotten() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.advance = 'grant') AND wirefence.is_former(NULL) $$;

-- following is the token behind the last one. Where grants may be lost it is above all
-- of them: the time since 1970 in parts of 2^20 to a second, about a microsecond each, which
-- nobody counts faster than. So of two promotions within a second the later goes higher,
-- too. It stays below 2^53. The timeline would not do: two standbys of one primary get
-- the same.
CREATE FUNCTION wirefence.following(known wirefence.resource_locks) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN wirefence.is_former(known)
        THEN greatest(coalesce((known).last_token, 0) + 1, floor(extract(epoch FROM clock_timestamp()) * 1048576)::bigint)
        ELSE coalesce((known).last_token, 0) + 1 END
$$;

-- further is the token by which an operator locks the present holder out. Numbers that
-- are counted elsewhere can't be moved by more than one: where they are recorded by
-- their first use, a lost one may count again.
CREATE FUNCTION wirefence.further(known wirefence.resource_locks) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE (known).advance WHEN 'use' THEN (known).last_token + 1 ELSE wirefence.following(known) END $$;
