-- Operators set the source and the policy of resources, each time with a reason.
SET LOCAL search_path = pg_catalog, pg_temp;

-- read_preempt_after converts preempt_after to an interval; never becomes null, which waits
-- without limit.
CREATE FUNCTION wirefence.read_preempt_after(preempt_after text) RETURNS interval
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN preempt_after <> 'never' THEN preempt_after::interval END $$;

-- check_reason raises 22023 for a reason that is empty or too long.
CREATE FUNCTION wirefence.check_reason(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(reason, '') !~ '[^[:space:]]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a reason must be given';
    ELSIF octet_length(reason) > 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a reason must have at most 1000 bytes';
    END IF;
END
$$;

-- check_failover raises 22023 for an unknown policy, and 0A000 for a policy that this server
-- cannot support.
CREATE FUNCTION wirefence.check_failover(failover text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF failover NOT IN ('reacquire', 'trust') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'failover must be reacquire or trust';
    ELSIF failover = 'reacquire' AND wirefence.identity() = 'unknown' THEN
        RAISE feature_not_supported USING
            MESSAGE = 'failover = reacquire needs a server that reports its timeline',
            DETAIL = 'This schema was created with failover = trust on a server that does not report it, so Wirefence cannot detect a promotion.',
            HINT = 'Run wirefence doctor and see its finding engine.timeline.';
    END IF;
END
$$;

-- check_settings raises 22023 for settings that no resource can have.
CREATE FUNCTION wirefence.check_settings(resource text, reason text, source text, advance text, reuse text, preempt_after text,
                                         mode text, failover text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    PERFORM wirefence.check_lease_text('a resource name', resource);
    PERFORM wirefence.read_source(source);
    PERFORM wirefence.check_reason(reason);
    PERFORM wirefence.check_failover(failover);
    IF advance NOT IN ('use', 'grant') THEN
        wrong := 'advance must be use or grant';
    ELSIF reuse NOT IN ('allow', 'once') THEN
        wrong := 'reuse must be allow or once';
    ELSIF mode NOT IN ('enforce', 'shadow') THEN
        wrong := 'mode must be enforce or shadow';
    ELSIF wirefence.read_preempt_after(preempt_after) NOT BETWEEN interval '0' AND interval '24 days' THEN
        wrong := 'preempt_after must be never, or 0 to 24 days'; -- what lock_timeout can hold
    ELSE
        RETURN;
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = wrong;
END
$$;

-- with_settings returns a row with the settings that were named.
CREATE FUNCTION wirefence.with_settings(known wirefence.resource_locks, named jsonb) RETURNS wirefence.resource_locks
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM jsonb_populate_record(known, named || CASE named ->> 'preempt_after' WHEN 'never' THEN '{"preempt_after": null}' ELSE '{}' END::jsonb) $$;

-- settings_of lists the settings that were named, each with its value before and after.
CREATE FUNCTION wirefence.settings_of(named jsonb, before wirefence.resource_locks, after wirefence.resource_locks) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_object_agg(n.name, jsonb_build_array(to_jsonb(before) -> n.name, to_jsonb(after) -> n.name)), '{}')
    FROM jsonb_object_keys(named) AS n(name)
$$;

-- declare_resource raises duplicate_object if the resource exists with another setting than one that
-- is named. By default only a seal advances a declared resource, so no client can use up its tokens. Its
-- grants exceed all tokens that were forgotten; those of another service, with advance = use, begin
-- anywhere.
CREATE FUNCTION wirefence.declare_resource(resource text, reason text, source text DEFAULT NULL, must_name_source boolean DEFAULT NULL,
                                           advance text DEFAULT NULL, reuse text DEFAULT NULL, preempt_after text DEFAULT NULL,
                                           mode text DEFAULT NULL, failover text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    named CONSTANT jsonb := jsonb_strip_nulls(jsonb_build_object('source', source, 'must_name_source', must_name_source, 'advance', advance, 'reuse', reuse,
        'preempt_after', preempt_after, 'mode', mode, 'failover', failover));
    declared wirefence.resource_locks;
    known wirefence.resource_locks;
    differing text;
BEGIN
    PERFORM wirefence.check_settings(resource, reason, source, advance, reuse, preempt_after, mode, failover);
    IF must_name_source AND source IS NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'must_name_source needs a source',
            HINT = 'Give the source of the tokens as well.';
    END IF;
    declared := wirefence.with_settings(NULL, jsonb_build_object('must_name_source', false, 'advance', 'grant', 'reuse', 'allow', 'preempt_after', '5 s', 'mode', 'enforce',
        'failover', (SELECT s.failover FROM wirefence.settings AS s)) || named);
    PERFORM wirefence.require_durable_commit();
    INSERT INTO wirefence.resource_locks AS l (resource_id, last_token, source, must_name_source, advance, reuse, preempt_after, mode, failover)
    VALUES (resource, CASE declared.advance WHEN 'grant' THEN wirefence.forgotten_floor() ELSE 0 END, declared.source, declared.must_name_source,
            declared.advance, declared.reuse, declared.preempt_after, declared.mode, declared.failover)
    ON CONFLICT (resource_id) DO UPDATE SET
        source = excluded.source, must_name_source = excluded.must_name_source,
        advance = excluded.advance, reuse = excluded.reuse, preempt_after = excluded.preempt_after, mode = excluded.mode,
        failover = excluded.failover, forgotten_token = NULL, updated_at = clock_timestamp()
    WHERE wirefence.is_forgotten(l);
    IF FOUND THEN
        INSERT INTO wirefence.resource_changes (resource_id, reason, settings)
        VALUES (resource, reason, wirefence.settings_of(named, NULL, declared));
        RETURN true;
    END IF;
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    SELECT string_agg(n.name, ', ') INTO differing FROM jsonb_object_keys(named) AS n(name)
    WHERE to_jsonb(known) -> n.name IS DISTINCT FROM to_jsonb(declared) -> n.name;
    IF differing IS NOT NULL THEN
        RAISE duplicate_object USING
            MESSAGE = 'resource ' || wirefence.quote_name(resource) || ' already exists, with other settings',
            DETAIL = 'These settings differ: ' || differing || '.',
            HINT = 'To change them, run wirefence resource set.';
    END IF;
    RETURN false;
END
$$;

-- For set_resource, another source, or another last_token, locks the present holder out as revoke does.
-- Another source without a last_token raises the last token by one. If last_token goes down, tokens from
-- before could be accepted again, so from then on each token must name the source, unless
-- must_name_source says otherwise.
CREATE FUNCTION wirefence.set_resource(resource text, reason text, source text DEFAULT NULL, must_name_source boolean DEFAULT NULL,
                                       advance text DEFAULT NULL, reuse text DEFAULT NULL, preempt_after text DEFAULT NULL,
                                       last_token bigint DEFAULT NULL, mode text DEFAULT NULL, failover text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    named jsonb := jsonb_strip_nulls(jsonb_build_object('source', source, 'must_name_source', must_name_source, 'advance', advance, 'reuse', reuse,
        'preempt_after', preempt_after, 'last_token', last_token, 'mode', mode, 'failover', failover));
    known wirefence.resource_locks;
    wanted wirefence.resource_locks;
    evicts boolean;
    settings jsonb;
BEGIN
    PERFORM wirefence.check_settings(resource, reason, source, advance, reuse, preempt_after, mode, failover);
    IF named = '{}' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'no setting to change was given';
    ELSIF last_token < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'last_token must be at least 0';
    END IF;
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource;
    IF NOT FOUND THEN
        PERFORM wirefence.refuse_unknown(resource);
    END IF;
    evicts := coalesce(source <> known.source, false) OR coalesce(last_token <> known.last_token, false);
    IF evicts AND last_token IS NULL AND known.last_token = 9223372036854775807 THEN
        PERFORM wirefence.refuse_exhausted(resource, known.last_token);
    ELSIF evicts THEN -- lock first, row second, as in a seal
        PERFORM wirefence.lock_exclusive(resource, NULL, NULL, interval '0');
    END IF;
    SELECT * INTO known FROM wirefence.resource_locks AS l WHERE l.resource_id = resource FOR NO KEY UPDATE;
    IF NOT evicts AND (source <> known.source OR last_token <> known.last_token) THEN
        RAISE serialization_failure USING MESSAGE = 'resource ' || wirefence.quote_name(resource) || ' was changed concurrently', HINT = 'Try again.';
    END IF;
    wanted := wirefence.with_settings(known, named);
    wanted.last_token := coalesce(last_token, CASE WHEN evicts THEN wirefence.lockout_token(known) ELSE known.last_token END);
    wanted.sealed_under := CASE WHEN evicts AND (last_token IS NOT NULL OR known.advance = 'grant') THEN wirefence.identity() ELSE known.sealed_under END;
    wanted.must_name_source := coalesce(must_name_source, known.must_name_source OR wanted.last_token < known.last_token);
    IF wanted.must_name_source AND wanted.source IS NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'must_name_source needs a source',
            HINT = 'Give the source of the tokens as well.';
    END IF;
    SELECT named || coalesce(jsonb_object_agg(n.name, true), '{}') INTO named FROM unnest(ARRAY['last_token', 'must_name_source']) AS n(name)
    WHERE to_jsonb(known) -> n.name <> to_jsonb(wanted) -> n.name;
    settings := wirefence.settings_of(named, known, wanted);
    PERFORM wirefence.require_durable_commit();
    IF evicts THEN
        PERFORM wirefence.end_lease(resource);
    END IF;
    UPDATE wirefence.resource_locks AS l
    SET source = wanted.source, must_name_source = wanted.must_name_source, advance = wanted.advance, reuse = wanted.reuse,
        preempt_after = wanted.preempt_after, mode = wanted.mode, failover = wanted.failover, sealed_under = wanted.sealed_under, last_token = wanted.last_token, forgotten_token = NULL, updated_at = clock_timestamp(),
        holder = CASE WHEN evicts THEN NULL ELSE l.holder END, granted_at = CASE WHEN evicts THEN NULL ELSE l.granted_at END,
        used_token = CASE WHEN evicts THEN NULL ELSE l.used_token END, used_xid = CASE WHEN evicts THEN NULL ELSE l.used_xid END
    WHERE l.resource_id = resource;
    INSERT INTO wirefence.resource_changes (resource_id, reason, settings) VALUES (resource, reason, settings);
    RETURN settings;
END
$$;

-- For set_undeclared every resource that is in resource_locks at that time counts as declared.
CREATE FUNCTION wirefence.set_undeclared(undeclared text, reason text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    former text;
    settings jsonb;
BEGIN
    PERFORM wirefence.check_reason(reason);
    IF undeclared IS NULL OR undeclared NOT IN ('allow', 'refuse') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'undeclared must be allow or refuse';
    END IF;
    SELECT s.undeclared INTO former FROM wirefence.settings AS s FOR UPDATE;
    UPDATE wirefence.settings AS s SET undeclared = set_undeclared.undeclared;
    settings := jsonb_build_object('undeclared', jsonb_build_array(former, undeclared));
    INSERT INTO wirefence.resource_changes (resource_id, reason, settings) VALUES (NULL, reason, settings);
    RETURN settings;
END
$$;

-- A transaction that has advanced a resource keeps its row locked, for as long as it likes: set_failover
-- gives up, so that the rows it has locked itself block no seal.
CREATE FUNCTION wirefence.set_failover(failover text, reason text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    former text;
    settings jsonb;
BEGIN
    PERFORM wirefence.check_reason(reason);
    PERFORM wirefence.check_failover(coalesce(failover, ''));
    SELECT s.failover INTO former FROM wirefence.settings AS s FOR UPDATE;
    PERFORM wirefence.require_durable_commit();
    UPDATE wirefence.settings AS s SET failover = set_failover.failover;
    UPDATE wirefence.resource_locks AS l SET failover = set_failover.failover, updated_at = clock_timestamp()
    WHERE l.failover <> set_failover.failover AND NOT EXISTS (
        SELECT FROM wirefence.resource_changes AS c WHERE c.resource_id = l.resource_id AND c.settings ? 'failover');
    settings := jsonb_build_object('failover', jsonb_build_array(former, failover));
    INSERT INTO wirefence.resource_changes (resource_id, reason, settings) VALUES (NULL, reason, settings);
    RETURN settings;
EXCEPTION WHEN lock_not_available THEN
    RAISE lock_not_available USING
        MESSAGE = 'cannot change all resources now',
        DETAIL = 'A transaction that was the first to use a token is still open.',
        HINT = 'Try again when it has ended. SELECT * FROM wirefence.idle_holders() shows the sessions that hold resources.';
END
$$;

-- set_carry_name sets whether a fence in application_name counts. It returns the setting with its
-- value before and after.
CREATE FUNCTION wirefence.set_carry_name(carry_name boolean, reason text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    settings jsonb;
    propagated text;
BEGIN
    PERFORM wirefence.check_reason(reason);
    IF carry_name IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'carry_name must be true or false';
    END IF;
    PERFORM FROM wirefence.settings FOR UPDATE; -- two concurrent replacements would fail
    settings := jsonb_build_object('carry_name', jsonb_build_array(wirefence.carries_name(), carry_name));
    propagated := wirefence.propagate('off');
    IF carry_name THEN
        CREATE OR REPLACE FUNCTION wirefence.carries_name() RETURNS boolean LANGUAGE sql STABLE RETURN true;
    ELSE
        CREATE OR REPLACE FUNCTION wirefence.carries_name() RETURNS boolean LANGUAGE sql STABLE RETURN false;
    END IF;
    PERFORM wirefence.propagate(propagated);
    INSERT INTO wirefence.resource_changes (resource_id, reason, settings) VALUES (NULL, reason, settings);
    RETURN settings;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.declare_resource(text, text, text, boolean, text, text, text, text, text),
    wirefence.set_resource(text, text, text, boolean, text, text, text, bigint, text, text),
    wirefence.set_undeclared(text, text), wirefence.set_failover(text, text), wirefence.set_carry_name(boolean, text) TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.declare_resource(text, text, text, boolean, text, text, text, text, text) IS 'Declares a resource before its first token, with a reason and a policy; null keeps a default. False: it was already declared with these settings.';
COMMENT ON FUNCTION wirefence.set_resource(text, text, text, boolean, text, text, text, bigint, text, text) IS 'Changes the policy of a resource, with a reason; null keeps the present value. preempt_after is an interval or never. It returns each setting that was named, with its value before and after.';
COMMENT ON FUNCTION wirefence.set_undeclared(text, text) IS 'Sets how tokens of unknown resources are judged: allow, or refuse with WF008.';
COMMENT ON FUNCTION wirefence.set_failover(text, text) IS 'Sets whether tokens stay valid across a promotion, for every resource without a setting of its own: reacquire or trust.';
COMMENT ON FUNCTION wirefence.set_carry_name(boolean, text) IS 'Sets whether a fence in application_name counts, as in wirefence:orders=34~nightly job; it doesn''t by default.';
