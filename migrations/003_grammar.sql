-- The grammar of a fence, in agreement with fence.Parse of the Go package:
-- resource=token[@source][,resource=token[@source]...].
SET LOCAL search_path = pg_catalog, pg_temp;

-- refusals counts those that are raised here, also for the transactions that they
-- end: a sequence is not rolled back. The history tells how many of them it doesn't
-- know. After a crash it may have counted up to 32 too many.
CREATE SEQUENCE wirefence.refusals MINVALUE 0 START 0;
SELECT nextval('wirefence.refusals');

-- count_refusal is called before a refusal is raised; not for who only looks whether it
-- would be, whose lastval must stay. A READ ONLY transaction, and
-- so a standby, can't count. It returns what goes into the error's field SCHEMA, by which
-- a proxy tells refusals that are counted from others: this schema, or nothing.
CREATE FUNCTION wirefence.count_refusal() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_read_only') = 'off' AND current_setting('wirefence.observing', true) IS DISTINCT FROM 'on' THEN
        PERFORM nextval('wirefence.refusals');
        RETURN 'wirefence';
    END IF;
    RETURN '';
END
$$;

-- observing says whether refusals that are about to be raised are only looked at, and
-- so not counted. What raised one and was caught takes it back by itself.
CREATE FUNCTION wirefence.observing(only_looking boolean) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ SELECT set_config('wirefence.observing', CASE WHEN only_looking THEN 'on' ELSE '' END, true) $$;

-- malformed raises WF004. The reason is a clause without a full stop.
CREATE FUNCTION wirefence.malformed(reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal(),
        ERRCODE = 'WF004',
        MESSAGE = 'malformed fencing token',
        DETAIL = upper(left(reason, 1)) || substr(reason, 2) || '.',
        HINT = 'A fence is resource=token[@source][,resource=token[@source]...], with names percent-encoded outside A-Z a-z 0-9 _ . : / -';
END
$$;

-- quoted is a name as it stands in messages.
CREATE FUNCTION wirefence.quoted(name text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT
RETURN '"' || replace(name, '"', '""') || '"';

-- decoded reverses the percent-encoding of a resource name. The bytes are UTF-8
-- whatever the encoding of the database is; a name that it can't represent is
-- refused, since no seal could ever have recorded it.
CREATE FUNCTION wirefence.decoded(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bytes bytea;
BEGIN
    IF name = '' THEN
        PERFORM wirefence.malformed('a resource name is empty');
    END IF;
    IF name COLLATE "C" ~ '^[A-Za-z0-9_.:/-]+$' THEN
        IF length(name) > 255 THEN
            PERFORM wirefence.malformed('a resource name has ' || length(name) || ' bytes, at most 255 are allowed');
        END IF;
        RETURN name;
    END IF;
    IF name COLLATE "C" !~ '^([A-Za-z0-9_.:/-]|%[0-9A-Fa-f]{2})+$' THEN
        PERFORM wirefence.malformed('a resource name is not percent-encoded');
    END IF;
    SELECT string_agg(CASE WHEN left(m.part[1], 1) = '%' THEN decode(substr(m.part[1], 2), 'hex')
                           ELSE decode(m.part[1], 'escape') END, ''::bytea ORDER BY m.at)
    INTO bytes
    FROM regexp_matches(name COLLATE "C", '%..|[^%]+', 'g') WITH ORDINALITY AS m(part, at);
    IF length(bytes) > 255 THEN
        PERFORM wirefence.malformed('a resource name has ' || length(bytes) || ' bytes, at most 255 are allowed');
    END IF;
    BEGIN
        RETURN convert_from(bytes, 'UTF8');
    EXCEPTION
        WHEN character_not_in_repertoire THEN
            PERFORM wirefence.malformed('a resource name is not valid UTF-8 or contains a NUL');
        WHEN untranslatable_character OR undefined_function THEN
            PERFORM wirefence.malformed('a resource name can''t be represented in the encoding of this database');
    END;
END
$$;

-- token_of reads a decimal token from 1 to 9223372036854775807.
CREATE FUNCTION wirefence.token_of(number text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF number = '' THEN
        PERFORM wirefence.malformed('a token is missing');
    ELSIF number COLLATE "C" !~ '^[0-9]+$' THEN
        PERFORM wirefence.malformed('a token is not a decimal number');
    ELSIF left(number, 1) = '0' THEN
        PERFORM wirefence.malformed('a token starts with zero');
    ELSIF length(number) > 19 OR length(number) = 19 AND number COLLATE "C" > '9223372036854775807' THEN
        PERFORM wirefence.malformed('a token exceeds 9223372036854775807');
    END IF;
    RETURN number::bigint;
END
$$;

-- source_of reads the name of a source; null names none.
CREATE FUNCTION wirefence.source_of(name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name COLLATE "C" !~ '^[a-z][a-z0-9_.-]{0,31}$' THEN
        PERFORM wirefence.malformed('the name of a token''s source must have 1 to 32 bytes of a-z 0-9 _ . - and start with a letter');
    END IF;
    RETURN name;
END
$$;

-- parsed reads a fence into pairs, sorted by resource in byte order, at most
-- one for a resource. A bare token means default_resource. A source is null
-- where none is named; of two equal pairs one may leave it open.
CREATE FUNCTION wirefence.parsed(fence text, default_resource text, OUT resources text[], OUT tokens bigint[], OUT sources text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item text;
    cut integer;
    contested text;
    disputed text;
BEGIN
    IF fence = '' THEN
        PERFORM wirefence.malformed('it is empty');
    ELSIF octet_length(fence) > 26208 THEN
        PERFORM wirefence.malformed('it has ' || octet_length(fence) || ' bytes, at most 26208 are allowed');
    END IF;
    FOREACH item IN ARRAY string_to_array(fence, ',') LOOP
        cut := strpos(item, '=');
        IF cut > 0 THEN
            resources := resources || wirefence.decoded(left(item, cut - 1));
        ELSIF octet_length(default_resource) > 255 THEN
            PERFORM wirefence.malformed('a resource name has ' || octet_length(default_resource) || ' bytes, at most 255 are allowed');
        ELSIF default_resource <> '' THEN
            resources := resources || default_resource;
        ELSE
            PERFORM wirefence.malformed('a pair is not of the form resource=token');
        END IF;
        item := substr(item, cut + 1);
        cut := strpos(item, '@');
        sources := array_append(sources, CASE WHEN cut > 0 THEN wirefence.source_of(substr(item, cut + 1)) END);
        tokens := tokens || wirefence.token_of(CASE WHEN cut > 0 THEN left(item, cut - 1) ELSE item END);
    END LOOP;
    SELECT array_agg(p.resource ORDER BY p.resource), array_agg(p.token ORDER BY p.resource), array_agg(p.source ORDER BY p.resource),
           min(p.resource) FILTER (WHERE p.contested), min(p.resource) FILTER (WHERE p.disputed)
    INTO resources, tokens, sources, contested, disputed
    FROM (SELECT u.resource COLLATE "C" AS resource, min(u.token) AS token, min(u.source COLLATE "C") AS source,
                 min(u.token) < max(u.token) AS contested, min(u.source COLLATE "C") < max(u.source COLLATE "C") AS disputed
          FROM unnest(resources, tokens, sources) AS u(resource, token, source) GROUP BY 1) AS p;
    IF contested IS NOT NULL THEN
        PERFORM wirefence.malformed('resource ' || wirefence.quoted(contested) || ' has two tokens');
    ELSIF disputed IS NOT NULL THEN
        PERFORM wirefence.malformed('the token of resource ' || wirefence.quoted(disputed) || ' has two sources');
    ELSIF cardinality(resources) > 32 THEN
        PERFORM wirefence.malformed('it names ' || cardinality(resources) || ' resources, at most 32 are allowed');
    END IF;
END
$$;
