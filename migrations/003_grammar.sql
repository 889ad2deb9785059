-- The grammar of a fence, in agreement with fence.Parse of the Go package:
-- resource=token[@source][,resource=token[@source]...]. Pairs of rows are read in 011_rows.sql.
SET LOCAL search_path = pg_catalog, pg_temp;

-- refusals counts the refusals raised by these functions. It is a sequence because a rollback
-- does not undo nextval, so it also counts refusals of transactions that end by them. The
-- history compares this count with what was recorded. After a crash the count may be up to 32
-- too high.
CREATE SEQUENCE wirefence.refusals MINVALUE 0 START 0;
SELECT nextval('wirefence.refusals');

-- The last four refusals, for collect_refusals, in three sequences each: the resource's key, the
-- token that was presented, and the rest. The number of the refusal decides whose turn it is.
CREATE SEQUENCE wirefence.refused_0_key MINVALUE -9223372036854775808;
CREATE SEQUENCE wirefence.refused_0_token MINVALUE 0;
CREATE SEQUENCE wirefence.refused_0_rest MINVALUE 0;
CREATE SEQUENCE wirefence.refused_1_key MINVALUE -9223372036854775808;
CREATE SEQUENCE wirefence.refused_1_token MINVALUE 0;
CREATE SEQUENCE wirefence.refused_1_rest MINVALUE 0;
CREATE SEQUENCE wirefence.refused_2_key MINVALUE -9223372036854775808;
CREATE SEQUENCE wirefence.refused_2_token MINVALUE 0;
CREATE SEQUENCE wirefence.refused_2_rest MINVALUE 0;
CREATE SEQUENCE wirefence.refused_3_key MINVALUE -9223372036854775808;
CREATE SEQUENCE wirefence.refused_3_token MINVALUE 0;
CREATE SEQUENCE wirefence.refused_3_rest MINVALUE 0;

-- refusal_slot returns one of the sequences of a refusal.
CREATE FUNCTION wirefence.refusal_slot(number bigint, part text) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN format('wirefence.refused_%s_%s', number % 4, part)::regclass;

-- keep_refusal keeps a refusal. The rest has, from the upper bits down, the seconds since 1970,
-- the last digit of the SQLSTATE, five bits of the number, by which a reader recognizes a slot
-- that is being written, and the process. setval, unlike nextval, leaves lastval alone.
CREATE FUNCTION wirefence.keep_refusal(number bigint, state text, resource text, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM setval(wirefence.refusal_slot(number, 'key'), wirefence.lock_key(resource)),
            setval(wirefence.refusal_slot(number, 'token'), coalesce(token, 0)),
            setval(wirefence.refusal_slot(number, 'rest'),
                   (extract(epoch FROM clock_timestamp())::bigint << 30) + (right(state, 1)::bigint << 27) + (number % 32 << 22) + pg_backend_pid() % 4194304);
END
$$;

-- count_refusal counts a refusal that is about to be raised, and keeps it if its resource is
-- known. It returns the value for the field SCHEMA of the error, by which a proxy distinguishes counted refusals from others:
-- wirefence if it was counted, otherwise an empty string. A READ ONLY transaction, and so a
-- standby, cannot count. A shadow check must not count: it would change lastval of the
-- session.
CREATE FUNCTION wirefence.count_refusal(state text DEFAULT NULL, resource text DEFAULT NULL, token bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number bigint;
BEGIN
    IF current_setting('transaction_read_only') = 'off' AND current_setting('wirefence.observing', true) IS DISTINCT FROM 'on' THEN
        number := nextval('wirefence.refusals');
        IF resource IS NOT NULL THEN
            PERFORM wirefence.keep_refusal(number, state, resource, token);
        END IF;
        RETURN 'wirefence';
    END IF;
    RETURN '';
END
$$;

-- suppress_counting makes count_refusal count nothing, or count again. A block with EXCEPTION
-- that catches a refusal restores the former state by itself.
CREATE FUNCTION wirefence.suppress_counting(suppress boolean) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ SELECT set_config('wirefence.observing', CASE WHEN suppress THEN 'on' ELSE '' END, true) $$;

-- refuse_malformed raises WF004. The reason is a clause without a full stop.
CREATE FUNCTION wirefence.refuse_malformed(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal(),
        ERRCODE = 'WF004',
        MESSAGE = 'malformed fencing token',
        DETAIL = upper(left(reason, 1)) || substr(reason, 2) || '.',
        HINT = 'A fence is resource=token[@source] or class(key)=claim, several with commas between them, with names percent-encoded outside A-Z a-z 0-9 _ . : / -';
END
$$;

-- quote_name quotes a name for a message.
CREATE FUNCTION wirefence.quote_name(name text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT
RETURN '"' || replace(name, '"', '""') || '"';

-- decode_text reverses the percent-encoding of a name or a key. The bytes are UTF-8, whatever
-- the encoding of the database.
CREATE FUNCTION wirefence.decode_text(encoded text, what text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT convert_from(string_agg(CASE WHEN left(m.part[1], 1) = '%' THEN decode(substr(m.part[1], 2), 'hex')
                                                ELSE decode(m.part[1], 'escape') END, ''::bytea ORDER BY m.at), 'UTF8')
            FROM regexp_matches(encoded COLLATE "C", '%..|[^%]+', 'g') WITH ORDINALITY AS m(part, at));
EXCEPTION
    WHEN character_not_in_repertoire THEN
        PERFORM wirefence.refuse_malformed(what || ' is not valid UTF-8 or contains a NUL');
    WHEN untranslatable_character OR undefined_function THEN
        PERFORM wirefence.refuse_malformed(what || ' can''t be represented in the encoding of this database');
END
$$;

-- decode_name reverses the percent-encoding of a resource name. A name that the encoding of the
-- database cannot represent is refused, since no seal can have recorded it.
CREATE FUNCTION wirefence.decode_name(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes integer;
BEGIN
    IF name = '' THEN
        PERFORM wirefence.refuse_malformed('a resource name is empty');
    ELSIF name COLLATE "C" !~ '^([A-Za-z0-9_.:/-]|%[0-9A-Fa-f]{2})+$' THEN
        PERFORM wirefence.refuse_malformed('a resource name is not percent-encoded');
    END IF;
    bytes := length(name) - 2 * (length(name) - length(replace(name, '%', '')));
    IF bytes > 255 THEN
        PERFORM wirefence.refuse_malformed('a resource name has ' || bytes || ' bytes, at most 255 are allowed');
    ELSIF strpos(name, '%') > 0 THEN
        RETURN wirefence.decode_text(name, 'a resource name');
    END IF;
    RETURN name;
END
$$;

-- read_token reads a decimal token from 1 to 9223372036854775807.
CREATE FUNCTION wirefence.read_token(number text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF number = '' THEN
        PERFORM wirefence.refuse_malformed('a token is missing');
    ELSIF number COLLATE "C" !~ '^[0-9]+$' THEN
        PERFORM wirefence.refuse_malformed('a token is not a decimal number');
    ELSIF left(number, 1) = '0' THEN
        PERFORM wirefence.refuse_malformed('a token starts with zero');
    ELSIF length(number) > 19 OR length(number) = 19 AND number COLLATE "C" > '9223372036854775807' THEN
        PERFORM wirefence.refuse_malformed('a token exceeds 9223372036854775807');
    END IF;
    RETURN number::bigint;
END
$$;

-- read_source validates the name of a source; null names none.
CREATE FUNCTION wirefence.read_source(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name COLLATE "C" !~ '^[a-z][a-z0-9_.-]{0,31}$' THEN
        PERFORM wirefence.refuse_malformed('the name of a token''s source must have 1 to 32 bytes of a-z 0-9 _ . - and start with a letter');
    END IF;
    RETURN name;
END
$$;

-- parse_fence reads a fence into pairs: one for each resource, sorted by resource in byte
-- order. A bare token belongs to default_resource. source is null where the fence names none;
-- of two equal pairs one may omit it.
CREATE FUNCTION wirefence.parse_fence(fence text, default_resource text, OUT resources text[], OUT tokens bigint[], OUT sources text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item text;
    cut integer;
    contested text;
    disputed text;
BEGIN
    IF fence = '' THEN
        PERFORM wirefence.refuse_malformed('it is empty');
    ELSIF fence = '~' THEN
        PERFORM wirefence.refuse_malformed('in application_name it is wirefence:resource=token~, of at most 63 bytes, with capitals percent-encoded');
    ELSIF octet_length(fence) > 1048576 THEN
        PERFORM wirefence.refuse_malformed('it has ' || octet_length(fence) || ' bytes, at most 1048576 are allowed');
    END IF;
    FOREACH item IN ARRAY string_to_array(fence, ',') LOOP
        cut := strpos(item, '=');
        IF cut > 0 THEN
            resources := resources || wirefence.decode_name(left(item, cut - 1));
        ELSIF octet_length(default_resource) > 255 THEN
            PERFORM wirefence.refuse_malformed('a resource name has ' || octet_length(default_resource) || ' bytes, at most 255 are allowed');
        ELSIF default_resource <> '' THEN
            resources := resources || default_resource;
        ELSE
            PERFORM wirefence.refuse_malformed('a pair is not of the form resource=token');
        END IF;
        item := substr(item, cut + 1);
        cut := strpos(item, '@');
        sources := array_append(sources, CASE WHEN cut > 0 THEN wirefence.read_source(substr(item, cut + 1)) END);
        tokens := tokens || wirefence.read_token(CASE WHEN cut > 0 THEN left(item, cut - 1) ELSE item END);
    END LOOP;
    SELECT array_agg(p.resource ORDER BY p.resource), array_agg(p.token ORDER BY p.resource), array_agg(p.source ORDER BY p.resource),
           min(p.resource) FILTER (WHERE p.contested), min(p.resource) FILTER (WHERE p.disputed)
    INTO resources, tokens, sources, contested, disputed
    FROM (SELECT u.resource COLLATE "C" AS resource, min(u.token) AS token, min(u.source COLLATE "C") AS source,
                 min(u.token) < max(u.token) AS contested, min(u.source COLLATE "C") < max(u.source COLLATE "C") AS disputed
          FROM unnest(resources, tokens, sources) AS u(resource, token, source) GROUP BY 1) AS p;
    IF contested IS NOT NULL THEN
        PERFORM wirefence.refuse_malformed('resource ' || wirefence.quote_name(contested) || ' has two tokens');
    ELSIF disputed IS NOT NULL THEN
        PERFORM wirefence.refuse_malformed('the token of resource ' || wirefence.quote_name(disputed) || ' has two sources');
    ELSIF cardinality(resources) > 32 THEN
        PERFORM wirefence.refuse_malformed('it names ' || cardinality(resources) || ' resources, at most 32 are allowed');
    END IF;
END
$$;

-- carries_name reports whether a fence in application_name counts. set_carry_name replaces it. As a
-- constant it costs nothing where it doesn't.
CREATE FUNCTION wirefence.carries_name() RETURNS boolean
LANGUAGE sql STABLE
RETURN false;

-- named_fence returns the fence of an application_name such as wirefence:orders=34~nightly job, and
-- ~, which is no fence, if it is cut or has capitals outside of percent-encoding: poolers take names
-- for equal that differ in case.
CREATE FUNCTION wirefence.named_fence(name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN left(name, 10) = 'wirefence:'
            THEN coalesce(substring(name COLLATE "C" FROM '^wirefence:(([^A-Z~]|%[0-9A-F]{2})+)~'), '~') END;

-- carried returns the fence of the session: that of the variable, otherwise that of the name.
CREATE FUNCTION wirefence.carried() RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('wirefence.token', true) <> '' THEN current_setting('wirefence.token', true)
            WHEN wirefence.carries_name() THEN wirefence.named_fence(current_setting('application_name')) END;

-- guarded_by returns the fence for guards: that of the session, otherwise that of the lock that the
-- application has by itself, which a sidecar keeps in wirefence.lease. A check by the proxy doesn't
-- read the latter, since all else that the application does is none of the lock's business.
CREATE FUNCTION wirefence.guarded_by() RETURNS text
LANGUAGE sql STABLE
RETURN coalesce(wirefence.carried(), nullif(current_setting('wirefence.lease', true), ''));

GRANT EXECUTE ON FUNCTION wirefence.carries_name(), wirefence.named_fence(text), wirefence.carried(), wirefence.guarded_by() TO PUBLIC;

COMMENT ON FUNCTION wirefence.carries_name() IS 'Returns whether a fence in application_name counts.';
