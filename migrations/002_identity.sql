-- Tokens across a promotion. A standby that did not receive the last commits lacks the last
-- grants: its last_token is that of a former holder. So a row is valid only on the server and
-- the timeline on which it was written, and the next token exceeds every token that the lost
-- history can have granted.
SET LOCAL search_path = pg_catalog, pg_temp;

-- is_former reports whether the row of a resource, or the lack of one, may miss grants
-- because it is from another cluster or another timeline.
CREATE FUNCTION wirefence.is_former(known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce((known).failover, s.failover) = 'reacquire' AND coalesce((known).sealed_under, s.began_under) <> wirefence.identity()
    FROM wirefence.settings AS s
$$;

-- default_failover returns the failover policy of resources for which no operator has set
-- one.
CREATE FUNCTION wirefence.default_failover() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT s.failover FROM wirefence.settings AS s $$;

-- row_may_be_lost reports whether a promotion may have lost the row of a resource that is
-- unknown here. That is possible only where this database grants tokens. Where another
-- service grants all of them, nobody would ever seal the resource, so it must stay usable.
CREATE FUNCTION wirefence.row_may_be_lost() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.advance = 'grant') AND wirefence.is_former(NULL) $$;

-- next_token returns the token for the next grant. Where grants may be lost it exceeds all of
-- them: it is the time since 1970 in units of 2^-20 s, about a microsecond, and no service
-- grants faster than that. So the later of two promotions within one second gets the higher
-- token, too. The result stays below 2^53. The timeline cannot serve as the upper part of the
-- token: two standbys of one primary get the same timeline.
CREATE FUNCTION wirefence.next_token(known wirefence.resource_locks) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN wirefence.is_former(known)
        THEN greatest(coalesce((known).last_token, 0) + 1, floor(extract(epoch FROM clock_timestamp()) * 1048576)::bigint)
        ELSE coalesce((known).last_token, 0) + 1 END
$$;

-- lockout_token returns the token by which an operator locks the present holder out. Tokens
-- of another lock service are raised by one only, since Wirefence cannot make that service
-- jump. So a token that a promotion lost may be accepted again there.
CREATE FUNCTION wirefence.lockout_token(known wirefence.resource_locks) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE (known).advance WHEN 'use' THEN (known).last_token + 1 ELSE wirefence.next_token(known) END $$;
