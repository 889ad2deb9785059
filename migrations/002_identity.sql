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

-- row_may_be_lost reports whether a promotion may have lost the row of a resource that is
-- unknown here. That is possible only where this database grants tokens. Where another
-- service grants all of them, nobody would ever seal the resource, so it must stay usable.
CREATE FUNCTION wirefence.row_may_be_lost() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (s.forgot_grants OR EXISTS (SELECT FROM wirefence.resource_locks AS l WHERE l.advance = 'grant')) AND wirefence.is_former(NULL)
    FROM wirefence.settings AS s
$$;

-- is_forgotten reports whether the row of a resource counts as none: see 016_forget.sql.
CREATE FUNCTION wirefence.is_forgotten(known wirefence.resource_locks) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN (known).forgotten_token IS NOT NULL AND (known).forgotten_token = (known).last_token;

-- forgotten_floor returns the highest token that was ever forgotten. A resource without a row may
-- have had any token up to it.
CREATE FUNCTION wirefence.forgotten_floor() RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT s.floor FROM wirefence.settings AS s $$;

-- next_token returns the token for the next grant. Where grants may be lost, it jumps above all
-- of them: by 2^32 at least, and at least to the time since 1970 in units of 2^-20 s, about a
-- microsecond, which stays below 2^53. The time alone would not do: the last token may be
-- higher, as that of another service, or of a clock that was ahead. A random number below 2^32
-- is added, because two standbys of one primary that are promoted within the same hour may
-- know the same last token. The timeline cannot tell them apart, since both get the same one.
-- Neither could the clock, as their tokens must differ for as long as both grant.
CREATE FUNCTION wirefence.next_token(known wirefence.resource_locks) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last CONSTANT bigint := coalesce(known.last_token, wirefence.forgotten_floor());
BEGIN
    IF NOT wirefence.is_former(known) THEN
        RETURN last + 1;
    ELSIF last > 9223372028264841216 THEN -- 2^63 - 2^33
        PERFORM wirefence.refuse_exhausted(known.resource_id, last);
    END IF;
    RETURN greatest(last + 4294967296, floor(extract(epoch FROM clock_timestamp()))::bigint << 20)
        + ('x' || left(gen_random_uuid()::text, 8))::bit(32)::bigint; -- random() could be repeated by setseed
END
$$;

-- lockout_token returns the token by which an operator locks the present holder out. Tokens
-- of another lock service are raised by one only, since Wirefence cannot make that service
-- jump. So a token that a promotion lost may be accepted again there.
CREATE FUNCTION wirefence.lockout_token(known wirefence.resource_locks) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE (known).advance WHEN 'use' THEN (known).last_token + 1 ELSE wirefence.next_token(known) END $$;
