-- Tells the steps that package model knows in the write-ahead log, in the order in which they
-- happen, behind a resource's lock or under it: the functions of checks, holds and seals get
-- others in front of them. The functions are in the schema wirefence, since the proxy mistrusts
-- code elsewhere that names those of holds. The originals go on under names with _untold.
-- A step has the number of its transaction, if there is one, for a position.
CREATE FUNCTION wirefence.tell_step(kind text, actor text, resource text, token bigint) RETURNS void
LANGUAGE sql VOLATILE
AS $$ SELECT pg_logical_emit_message(false, 'step', concat_ws(' ', kind, actor, resource, token, coalesce(to_hex(pg_current_xact_id_if_assigned()::text::bigint), '0'))) $$;

-- step_actor names a session, and its transaction if a step ends with that.
CREATE FUNCTION wirefence.step_actor(transaction boolean) RETURNS text
LANGUAGE sql VOLATILE
RETURN pg_backend_pid() || CASE WHEN transaction THEN '/' || (extract(epoch FROM transaction_timestamp()) * 1000000)::bigint ELSE '' END;

CREATE FUNCTION wirefence.tell_fence(kind text, transaction boolean, fence text, default_resource text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pairs record := wirefence.parse_fence(coalesce(fence, nullif(current_setting('wirefence.token', true), '')), default_resource);
BEGIN
    PERFORM wirefence.tell_step(kind, wirefence.step_actor(transaction), u.resource, u.token)
    FROM unnest(pairs.resources, pairs.tokens) AS u(resource, token);
END
$$;

DO $$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT p.proname AS name, pg_get_functiondef(p.oid) AS body FROM pg_proc AS p
        WHERE p.oid IN ('wirefence.check(text, text, boolean, boolean)'::regprocedure, 'wirefence.proxy_hold(integer, text, text, text, boolean, text)'::regprocedure,
                        'wirefence.proxy_unhold(integer, bigint[])'::regprocedure, 'wirefence.lock_exclusive(text, bigint, text, interval, text)'::regprocedure)
    LOOP
        EXECUTE regexp_replace(regexp_replace(f.body, '"?\m' || f.name || '\M"?[.]', f.name || '_untold.', 'g'), '(FUNCTION wirefence[.])"?\w+"?', '\1' || f.name || '_untold');
        EXECUTE format('ALTER FUNCTION wirefence.%I OWNER TO wirefence_owner', f.name || '_untold');
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION wirefence.check(fence text, default_resource text, required boolean, shadow boolean) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text := wirefence.check_untold(fence, default_resource, required, shadow);
BEGIN
    IF answer IS NULL AND coalesce(fence, nullif(current_setting('wirefence.token', true), '')) IS NOT NULL THEN
        PERFORM wirefence.tell_fence('checked', true, fence, default_resource);
    END IF;
    RETURN answer;
END
$$;

CREATE OR REPLACE FUNCTION wirefence.proxy_hold(number integer, fence text, default_resource text, held text, required boolean, manner text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer text;
BEGIN
    IF held IS DISTINCT FROM 'nothing' THEN
        PERFORM wirefence.tell_step('unheld', wirefence.step_actor(false), '-', 0);
    END IF;
    answer := wirefence.proxy_hold_untold(number, fence, default_resource, held, required, manner);
    IF answer LIKE 'held %' THEN
        PERFORM wirefence.tell_fence('held', false, fence, default_resource);
    ELSIF manner = 'group' AND answer IN ('checked', 'once', 'apart') THEN
        PERFORM wirefence.tell_fence('checked', true, fence, default_resource);
    END IF;
    RETURN answer;
END
$$;

CREATE OR REPLACE FUNCTION wirefence.proxy_unhold(number integer, keys bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM wirefence.tell_step('unheld', wirefence.step_actor(false), '-', 0), wirefence.proxy_unhold_untold(number, keys);
END
$$;

-- A seal, a revocation and a first use take the lock by this. What they record is in the log.
CREATE OR REPLACE FUNCTION wirefence.lock_exclusive(resource text, token bigint, source text, preempt_after interval, caller text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM wirefence.tell_step('wanted', wirefence.step_actor(false), resource, coalesce(token, 0));
    RETURN wirefence.lock_exclusive_untold(resource, token, source, preempt_after, caller);
END
$$;

-- tell_write is a trigger of a table whose rows have the token by which they are written. Its argument
-- is the resource, in which {id} is a column.
CREATE FUNCTION wirefence.tell_write() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_current_xact_id(), wirefence.tell_step('ran', wirefence.step_actor(true), replace(TG_ARGV[0], '{id}', coalesce(to_jsonb(NEW)->>'id', '')), NEW.token);
    RETURN NEW;
END
$$;
